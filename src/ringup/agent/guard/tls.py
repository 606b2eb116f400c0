"""
TLS 1.3 between the guards of a detached run, and between pods; both sides authenticate by certificates.

The launcher makes the keys of a run and sends each node its own through ssh; pods derive theirs from a token.
Nothing here touches a socket: bytes go in and come out (link.py), so nothing blocks.
"""

import os
import sys

HEAD = "head"
"""The name in the certificate of the head or the first pod; node K's is "node-K"."""
MOST_HANDSHAKE_BYTES = 64 << 10
SERVER, CLIENT = True, False


def missing():
    """Why this node's Python lacks TLS 1.3; "" if it has it."""
    try:
        import ssl

        what = "" if ssl.HAS_TLSv1_3 else "has no TLS 1.3 (%s; OpenSSL 1.1.1 is needed)" % ssl.OPENSSL_VERSION
    except ImportError:
        what = "has no ssl module"
    return what and (
        "Python %s (%s) on this node %s. --detach needs it: name another Python with --python, "
        "or run without --detach inside tmux" % (sys.version.split()[0], sys.executable, what)
    )


def context(identity, side):
    """An SSLContext that accepts the certificates of this identity's authority and nothing else."""
    import ssl
    import tempfile

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side is SERVER else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=identity["authority"])
    if side is SERVER:
        made.num_tickets = 0  # no connection is resumed
    # OpenSSL reads keys only from a path.  In memory if Python was built against glibc 2.27 or later.
    in_memory = hasattr(os, "memfd_create")
    named = tempfile.NamedTemporaryFile
    with open(os.memfd_create("ringup-key"), "w") if in_memory else named("w", prefix="ringup-key") as file:
        file.write(identity["key"] + "\n" + identity["certificate"])
        file.flush()
        made.load_cert_chain("/proc/self/fd/%d" % file.fileno() if in_memory else file.name)
    return made


class Tls:
    """One connection: the socket's bytes on one side, the messages' bytes on the other."""

    def __init__(self, context, side):
        import ssl

        self._ssl = ssl
        self._in, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        """`out`: for the socket: the handshake, records, alerts."""
        name = None if side is SERVER else HEAD
        self._object = context.wrap_bio(self._in, self.out, server_side=side, server_hostname=name)
        self._shaking_bytes = 0
        self.is_open = False
        """Whether the other side has authenticated."""
        self.problem = ""
        if side is CLIENT:
            self._shake()

    def _shake(self):
        try:
            self._object.do_handshake()
            self.is_open = True
        except self._ssl.SSLWantReadError:
            if self._shaking_bytes > MOST_HANDSHAKE_BYTES:
                self.problem = "the TLS handshake did not end"
        except (self._ssl.SSLError, ValueError) as error:
            self.problem = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)

    def decrypt(self, data):
        """The decrypted bytes of the socket's data; b"" while there are none."""
        self._in.write(data)
        if not self.is_open and not self.problem:
            self._shaking_bytes += len(data)
            self._shake()
        pieces = []
        while self.is_open and not self.problem:
            try:
                piece = self._object.read(65536)
            except self._ssl.SSLWantReadError:
                break
            except self._ssl.SSLError as error:  # also the regular end
                self.problem = str(error.reason or error)
                break
            if not piece:
                self.problem = "it has ended"
            pieces.append(piece)
        return b"".join(pieces)

    def encrypt(self, data):
        try:
            self._object.write(data)
        except self._ssl.SSLError as error:
            self.problem = str(error.reason or error)
        return self.out.read()

    def peer(self):
        subject = (self._object.getpeercert() or {}).get("subject", ())
        return next((value for part in subject for key, value in part if key == "commonName"), "")
