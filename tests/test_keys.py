"""Certificates of ringup's own connections, against the standard library's TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from ringup.keys import Authority, Identity

SECRET = b"0123456789abcdef0123456789abcdef"


def context(identity: Identity, folder: Path, *, server: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=identity.authority)
    (folder / "pem").write_text(identity.key + identity.certificate)
    made.load_cert_chain(folder / "pem")
    return made


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str | None:
    """Both sides' handshake in memory; the TLS version."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    one.write(b"hello")
    assert other.read(5) == b"hello"
    return other.version()


def test_two_certificates_of_one_run_meet_by_tls_1_3(tmp_path: Path) -> None:
    authority = Authority()
    server = context(authority.issue("head"), tmp_path, server=True)
    client = context(authority.issue("node-1"), tmp_path, server=False)
    assert shake(server, client, "head") == "TLSv1.3"


def test_a_certificate_of_another_run_is_refused(tmp_path: Path) -> None:
    server = context(Authority().issue("head"), tmp_path, server=True)
    client = context(Authority().issue("node-1"), tmp_path, server=False)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client, "head")


def test_a_node_is_not_taken_for_the_head(tmp_path: Path) -> None:
    authority = Authority()
    server = context(authority.issue("node-2"), tmp_path, server=True)
    client = context(authority.issue("node-1"), tmp_path, server=False)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client, "head")


def test_a_node_cannot_make_itself_a_certificate_of_the_head(tmp_path: Path) -> None:
    """It signs one with its own key, and shows its own certificate as the authority behind it."""
    authority = Authority()
    own = authority.issue("node-2")
    hostile = Authority()
    hostile._key = serialization.load_pem_private_key(own.key.encode(), None)
    hostile._certificate = own.certificate.encode()
    forged = hostile.issue("head")
    chain = Identity(forged.key, forged.certificate + own.certificate, own.authority)
    server = context(chain, tmp_path, server=True)
    client = context(authority.issue("node-1"), tmp_path, server=False)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client, "head")


def test_holders_of_one_token_meet_and_others_do_not(tmp_path: Path) -> None:
    server = context(Authority(SECRET).issue("head"), tmp_path, server=True)
    assert shake(server, context(Authority(SECRET).issue("pod-1"), tmp_path, server=False), "head")
    stranger = context(Authority(SECRET[::-1]).issue("pod-1"), tmp_path, server=False)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, stranger, "head")
