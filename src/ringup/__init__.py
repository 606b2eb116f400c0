"""Check, launch and guard multi-node GPU training, and name the root cause when it hangs."""

__version__ = "0.1.0"
