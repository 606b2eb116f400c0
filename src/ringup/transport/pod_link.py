"""
TLS 1.3 between pods that share a token: both sides authenticate, messages are whole frames, nothing blocks.

The certificates are derived from the token (see `keys`), which is never sent.  A frame is one byte for its
kind, four bytes of length, and the content.  MESSAGE frames contain one of the messages below as JSON; the
streams of a shell have the numbers of its file descriptors, and an empty frame is the end of the stream.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec

from ringup.agent.guard import arrivals, tls
from ringup.keys import Authority
from ringup.units import printable, show_seconds

DIAL_S = 5.0
MESSAGE = 255
LONGEST_MESSAGE_BYTES = 4096
LONGEST_FRAME_BYTES = 65536
LONGEST_WORDS = 400
_HEADER = struct.Struct(">BI")

_Bounded = Annotated[str, msgspec.Meta(max_length=253)]
_Words = Annotated[str, msgspec.Meta(max_length=LONGEST_WORDS * 10)]


class Hello(msgspec.Struct, tag="hello", forbid_unknown_fields=True):
    """A pod's first message on every connection."""

    version: Literal[2]
    index: int
    count: int
    name: _Bounded
    instance: _Bounded
    """Random; distinguishes a restarted pod from another one with the same index."""
    shell: Annotated[int, msgspec.Meta(ge=0, lt=64)] | None = None
    """Number of the shell on this connection; None on the control connection."""
    loop: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{0,64}$")] = ""
    """Token of that shell's loop; see `bootstrap`."""


class Welcome(msgspec.Struct, tag="welcome", forbid_unknown_fields=True):
    """The first pod accepts the connection."""


class Refusal(msgspec.Struct, tag="refusal", forbid_unknown_fields=True):
    """The first pod refuses it; `final` if another try cannot help."""

    words: _Words
    final: bool = True


class End(msgspec.Struct, tag="end", forbid_unknown_fields=True):
    """The run is over; every pod exits with its exit code."""

    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    words: _Words = ""


class Refused(Exception):
    """The other side has authenticated, and refuses; `final` as in `Refusal`."""

    def __init__(self, words: str, *, final: bool = True) -> None:
        super().__init__(printable(words, LONGEST_WORDS))
        self.final = final


def decode(kind: int, content: bytes, wanted: Any) -> Any:
    """The message in a frame; ConnectionError if it has another form."""
    try:
        if kind != MESSAGE or len(content) > LONGEST_MESSAGE_BYTES:
            raise ConnectionError("a frame that is not expected here")
        return msgspec.json.decode(content, type=wanted)
    except (RecursionError, ValueError) as error:
        raise ConnectionError("a message that is not of this version of ringup") from error


def server_context(authority: Authority) -> ssl.SSLContext:
    made: ssl.SSLContext = tls.context(asdict(authority.issue(tls.HEAD)), tls.SERVER)
    return made


def client_context(authority: Authority, index: int) -> ssl.SSLContext:
    made: ssl.SSLContext = tls.context(asdict(authority.issue(certified(index))), tls.CLIENT)
    return made


def certified(index: int) -> str:
    return f"pod-{index}"


def keep_alive(connection: socket.socket) -> None:
    """Make the kernel detect a cut cable within half a minute, and send small packets at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Other kernels of launching machines (macOS) lack some of them.
    limits = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30000}
    for name, value in limits.items():
        with contextlib.suppress(AttributeError, OSError):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Link:
    """One connection, under its selector; `on_frame` gets (kind, content), `on_end` why it is over."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, demands: str = "") -> None:
        """`demands`: the required name in the other side's certificate; without one this is the server."""
        try:
            keep_alive(connection)
            connection.setblocking(False)
            self._tls = context.wrap_socket(
                connection,
                server_side=not demands,
                server_hostname=demands or None,
                do_handshake_on_connect=False,
            )
        except BaseException:
            connection.close()
            raise
        self.loop = ""
        """Token of the shell's loop at the other end; see `bootstrap`."""
        self.peer = ""
        """The name in the other side's certificate, once verified."""
        self._selector: selectors.BaseSelector | None = None
        self._watched = 0
        self._wants_write = True  # the client sends first
        self._is_held = False
        self._received = bytearray()
        self._unsent = bytearray()

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    @property
    def unread_bytes(self) -> int:
        """Bytes after the last whole frame."""
        return len(self._received) + self._tls.pending()

    def attach(
        self,
        selector: selectors.BaseSelector,
        on_frame: Callable[[int, bytes], None],
        on_end: Callable[[OSError], None],
    ) -> None:
        """Receive frames under this selector only."""
        self.detach()
        self._selector, self._on_frame, self._on_end = selector, on_frame, on_end
        self._watch()

    def detach(self) -> None:
        if self._selector is not None and self._watched:
            self._selector.unregister(self._tls)
        self._selector, self._watched = None, 0

    def hold(self, is_held: bool) -> None:
        if self._is_held != is_held:
            self._is_held = is_held
            self._watch()

    def send(self, kind: int, data: bytes) -> None:
        """Send a stream's bytes, as many as the connection takes now, the rest later; b"" is its end."""
        if self._tls.fileno() < 0:
            return
        for begin in range(0, len(data) or 1, LONGEST_FRAME_BYTES):
            content = data[begin : begin + LONGEST_FRAME_BYTES]
            self._unsent += _HEADER.pack(kind, len(content)) + content
        if self.peer:
            self._attempt(self._flush)
            self._watch()

    def say(self, message: msgspec.Struct) -> None:
        self.send(MESSAGE, msgspec.json.encode(message))

    def close(self) -> None:
        self.detach()
        self._unsent.clear()
        self._tls.close()

    def _watch(self) -> None:
        if self._selector is None:
            return
        events = 0 if self._is_held else selectors.EVENT_READ
        if self._wants_write or (self._unsent and self.peer):
            events |= selectors.EVENT_WRITE
        if events != self._watched:
            if self._watched:
                self._selector.unregister(self._tls)
            if events:
                self._selector.register(self._tls, events, self._ready)
        self._watched = events

    def _ready(self) -> None:
        self._wants_write = False
        if not self.peer:
            self._attempt(self._shake_hands)
        if self.peer and self._unsent:
            self._attempt(self._flush)
        if self.peer and not self._is_held and self._selector is not None:
            self._attempt(self._read)
        self._watch()

    def _attempt(self, step: Callable[[], None]) -> None:
        """Continue as far as the connection allows it now."""
        try:
            step()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            self._wants_write = True
        except OSError as error:
            if self._selector is not None:
                self.detach()
                self._on_end(error)

    def _shake_hands(self) -> None:
        self._tls.do_handshake()
        names: Any = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        self.peer = next((str(name) for kind, name in names if kind == "DNS"), "")
        if not self.peer:
            raise ConnectionError("a certificate without a name")

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._tls.send(self._unsent[:LONGEST_FRAME_BYTES])]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError:
            # The other side is gone; its earlier data must still be read.
            self._unsent.clear()

    def _read(self) -> None:
        # At most one record: more data inside OpenSSL would not wake the selector.
        while True:
            if not (data := self._tls.recv(LONGEST_FRAME_BYTES)):
                raise ConnectionError("the connection was closed")
            self._received += data
            self._hand_on()
            if self._selector is None or not self._tls.pending():
                return

    def _hand_on(self) -> None:
        while self._selector is not None and len(self._received) >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._received)
            if size > (LONGEST_MESSAGE_BYTES if kind == MESSAGE else LONGEST_FRAME_BYTES):
                raise ConnectionError("a frame too long")
            end = _HEADER.size + size
            if len(self._received) < end:
                return
            content = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            self._on_frame(kind, content)


def turn(selector: selectors.BaseSelector, timeout_s: float) -> None:
    """Wait for any event under a selector whose keys' data are functions, and call these."""
    for key, _ in selector.select(max(0.0, timeout_s)):
        # A called function may have closed other connections of the same batch.
        if selector.get_map().get(key.fd) is key:
            key.data()


def dial(address: tuple[str, int], context: ssl.SSLContext, hello: Hello) -> Link:
    """Connect to the first pod.  Raises OSError if none answers or authenticates, Refused if it refuses."""
    link = Link(socket.create_connection(address, timeout=DIAL_S), context, demands=tls.HEAD)
    until = time.monotonic() + arrivals.HANDSHAKE_S
    came: list[Welcome | Refusal | OSError] = []

    def on_frame(kind: int, content: bytes) -> None:
        came.append(decode(kind, content, Welcome | Refusal))

    try:
        with selectors.DefaultSelector() as selector:
            link.attach(selector, on_frame, came.append)
            link.say(hello)
            while not came and time.monotonic() < until:
                turn(selector, until - time.monotonic())
            link.detach()
        answer = came[0] if came else TimeoutError(f"no answer within {show_seconds(arrivals.HANDSHAKE_S)}")
        if isinstance(answer, OSError):
            raise answer
        if isinstance(answer, Refusal):
            raise Refused(answer.words, final=answer.final)
    except BaseException:
        link.close()
        raise
    return link


# A peer that closed the connection: Python's version decides which exception it is.
CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def explain(error: Exception) -> str:
    """
    Why a connection failed, as seen from this side.

    >>> explain(ssl.SSLCertVerificationError(1, "certificate verify failed"))
    'it has another token, or is not ringup'
    """
    reason = str(getattr(error, "reason", None) or "")
    if isinstance(error, ssl.SSLCertVerificationError) or reason in _TOKEN_ALERTS:
        return "it has another token, or is not ringup"
    if isinstance(error, CLOSED):
        return "the connection was closed"
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS 1.3 as a pod does ({printable(reason, 60) or 'no reason given'})"
    return printable(str(getattr(error, "strerror", None) or error), 200)


_TOKEN_ALERTS = {"TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_DECRYPT_ERROR", "SSLV3_ALERT_BAD_CERTIFICATE"}
