"""
Access to other machines: a `Transport` runs scripts and programs over one connection to each node.

A node's failure is an `Answer` with its `error`, or an `on_exit`; it is never raised.
"""

from ringup.transport.connections import Transport
from ringup.transport.session import Answer, Listener, Request

__all__ = ["Answer", "Listener", "Request", "Transport"]
