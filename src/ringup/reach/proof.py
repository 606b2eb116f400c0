"""
Mutual proof over a fresh TCP connection that both sides hold one token, which never travels.

Each side sends a random nonce and then HMAC-SHA256(token, side + both nonces + what was said).  A stranger
learns nothing he could use elsewhere, and nothing he says has any effect before his proof.  What travels
afterwards is neither encrypted nor signed: the network between the pods must be trusted, as for ssh-less
MPI or the ranks' own traffic.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

VERSION = 1
SHORTEST_TOKEN = 16
LONGEST_LINE_BYTES = 4096
STEP_S = 10.0
"""How long the other side may take for a line of the proof."""

Message = dict[str, Any]


class Refused(Exception):
    """The other side said no, or is not who it should be; `final` when trying again cannot help."""

    def __init__(self, words: str, *, final: bool = True) -> None:
        super().__init__(words)
        self.final = final


def encode(message: Message) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """A line as a message; {} for what is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def new_nonce() -> str:
    """256 random bits in hex."""
    return secrets.token_hex(32)


def proof(token: bytes, side: str, hello: Message, head_nonce: str) -> str:
    """What only a holder of the token can say about this connection."""
    told = "\0".join([side, json.dumps(hello, sort_keys=True), head_nonce])
    return hmac.new(token, told.encode(), hashlib.sha256).hexdigest()


def is_proof(given: object, token: bytes, side: str, hello: Message, head_nonce: str) -> bool:
    """Whether the other side's proof is right; compared in constant time."""
    wanted = proof(token, side, hello, head_nonce)
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def read_line(connection: socket.socket) -> bytes:
    """
    One line, a byte at a time: what follows it belongs to somebody else.

    Raises OSError at the end of the stream, in silence and for a line too long.
    """
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the connection was closed")
        line += byte
        if len(line) > LONGEST_LINE_BYTES:
            raise ConnectionError("a line too long")
    return line


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice a cut cable within half a minute; small packets go at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every kernel that we launch from (macOS) has all of them.
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30000),
    ):
        with contextlib.suppress(AttributeError, OSError):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def dial(
    address: tuple[str, int], token: bytes, told: Message, *, wait_s: float
) -> tuple[socket.socket, Message]:
    """
    Connect to the head, prove ourselves, hear its proof: the connection and its welcome.

    Raises OSError where nobody answers (yet), Refused where the answer is no.
    """
    connection = socket.create_connection(address, timeout=wait_s)
    try:
        connection.settimeout(STEP_S)
        keep_alive(connection)
        hello = {**told, "version": VERSION, "nonce": new_nonce()}
        connection.sendall(encode(hello))
        answer = decode(read_line(connection))
        if "refused" in answer:
            raise Refused(str(answer["refused"])[:400], final=bool(answer.get("final", True)))
        if not is_proof(answer.get("proof"), token, "head", hello, str(answer.get("nonce"))):
            connection.sendall(encode({"bye": "token"}))
            raise Refused("it holds another token than we do")
        connection.sendall(encode({"proof": proof(token, "peer", hello, str(answer["nonce"]))}))
        welcome = decode(read_line(connection))
        if "refused" in welcome:
            raise Refused(str(welcome["refused"])[:400], final=bool(welcome.get("final", True)))
        if welcome.get("welcome") is not True:
            raise ConnectionError("no welcome came")
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    return connection, welcome
