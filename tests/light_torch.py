"""
Executed at the start of every Python of the development environments while LIGHT_TORCH names this file.

A process that imports torch takes 0.95 s of CPU time in place of 1.5 s: memory is collected less often, never
that of torch itself, and the kernels for tensors on the device "meta" are registered only where torch._dynamo
is imported, which needs them.  No job of the tests has such a tensor.  One that makes a torch.Generator, as a
DataLoader with workers does, imports torch._prims.rng_prims first; with WHOLE_TORCH, as users' examples have
it, the kernels are registered (1.15 s).  The lab starts some 1,000 ranks and launchers.  Benchmarks import
torch as it is.
"""

import gc
import importlib
import os
import sys
import types
from importlib.machinery import PathFinder

KERNELS = "torch._meta_registrations"


class WithTorch:
    """A finder for torch alone: once it is imported, what it made is never looked at again."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module if spec else None

        def exec_module(module):
            run(module)
            gc.freeze()

        if spec:
            spec.loader.exec_module = exec_module
        return spec


class WithDynamo:
    """A finder that finds nothing: it registers the kernels before torch._dynamo is imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch._dynamo":
            sys.meta_path.remove(self)
            del sys.modules[KERNELS]
            importlib.import_module(KERNELS)


if not any(type(finder).__name__ == "WithTorch" for finder in sys.meta_path):  # a start may come here twice
    gc.set_threshold(1_000_000)
    sys.meta_path.insert(0, WithTorch())
    if "WHOLE_TORCH" not in os.environ:
        sys.modules[KERNELS] = types.ModuleType(KERNELS)
        sys.meta_path.insert(1, WithDynamo())
