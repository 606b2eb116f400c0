"""
Keys and certificates for ringup's own connections: TLS 1.3, both sides authenticate.

Every certificate is signed by one authority, and nothing else is trusted.  The authority belongs to one run
(its key never leaves the launcher) or is derived from the pods' token (every holder derives the same one).
Certificates have no time limits: the nodes' clocks may be wrong, and the keys last for one run.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from dataclasses import dataclass
from typing import Any

SCRYPT = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 128 << 20}
"""About 0.2 s and 64 MiB for one derivation (RFC 7914)."""
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256 (FIPS 186-5): private keys are 1 to ORDER - 1."""


@dataclass(frozen=True)
class Identity:
    """The data of one side: its key and certificate, and the authority that it trusts.  All PEM."""

    key: str
    certificate: str
    authority: str


class Authority:
    """Signs the certificates of one run, or of all holders of one token."""

    def __init__(self, secret: bytes | None = None) -> None:
        """A new authority, or the one of a secret of 128 bits or more (`hosts.pod` refuses less)."""
        from cryptography.hazmat.primitives.asymmetric import ec

        if secret is None:
            self._key = ec.generate_private_key(ec.SECP256R1())
        else:
            # 48 bytes, so that the remainder is uniform within 2^-128.
            seed = hashlib.scrypt(secret, salt=b"ringup pods, TLS 1.3", dklen=48, **SCRYPT)
            self._key = ec.derive_private_key(1 + int.from_bytes(seed, "big") % (ORDER - 1), ec.SECP256R1())
        self._certificate = self._sign("ringup authority", self._key.public_key(), is_authority=True)

    def issue(self, name: str) -> Identity:
        """A new key and certificate; `name` is the DNS name that the other side can check."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        certificate = self._sign(name, key.public_key(), is_authority=False)
        return Identity(pem.decode(), certificate.decode(), self._certificate.decode())

    def _sign(self, name: str, public_key: Any, *, is_authority: bool) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        utc = datetime.timezone.utc
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ringup authority")])
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder(issuer, subject, public_key)
            .serial_number(int.from_bytes(os.urandom(16), "big") | 1)
            .not_valid_before(datetime.datetime(1970, 1, 1, tzinfo=utc))
            .not_valid_after(datetime.datetime(9999, 12, 31, tzinfo=utc))
            .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(signer, critical=False)
        )
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        own = signs if is_authority else x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(own, critical=is_authority)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
