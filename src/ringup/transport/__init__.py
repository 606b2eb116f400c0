"""Access to other machines: a `Transport` runs scripts over one connection per node, and gives `Answer`s."""

from ringup.transport.connections import Transport
from ringup.transport.session import Answer, KeepsErrors, Listener, Request

__all__ = ["Answer", "KeepsErrors", "Listener", "Request", "Transport"]
