"""The checks: pure functions from a `Cluster` to findings.  Importing this fills the registry."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
