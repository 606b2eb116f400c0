"""Access to other machines: a `Transport` runs scripts, one connection a node; a failure is an `Answer`."""

from ringup.transport.connections import Transport
from ringup.transport.session import Answer, Listener, Request

__all__ = ["Answer", "Listener", "Request", "Transport"]
