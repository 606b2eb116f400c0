"""Scripts for one process: nothing in them, or in modules next to them, joins ranks or averages gradients."""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial

from ringup.launchfiles.model import NODE_LAUNCHERS, Launch
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.ranks import Reading
from ringup.lint.rule import SCRIPT, SHELL, Found, fault
from ringup.lint.source import INIT, Script, read

Reader = Callable[[str], str | None]
"""A path next to the script ("models/net.py") -> its text; None if there is none."""
_JOINS = re.compile(
    r"(?i)distributed|\bdist\b|ddp|fsdp|horovod|\bhvd\b|byteps|bagua|deepspeed|accelerate\b|fabric|lightning|ignite"
    r"|torch_xla|\bxla\b|\bmpi|rank\b|world_?size|spawn|launch|\bray\b|paralleli[sz]e|megatron|nccl|gloo|colossal"
    r"|composer|subprocess|multiprocessing|os\.system|importlib|__import__|\bexec\("
)
"""Words of code that joins ranks, or may load code that does; one of them is enough to say nothing."""
_PLAIN = sys.stdlib_module_names | frozenset(
    (
        *("torch", "torchvision", "torchaudio", "torchtext", "torchinfo", "torchsummary", "numpy", "pandas"),
        *("scipy", "sklearn", "skimage", "matplotlib", "seaborn", "PIL", "cv2", "imageio", "albumentations"),
        *("h5py", "yaml", "tqdm", "wandb", "tensorboard", "tensorboardX", "einops", "tokenizers", "tiktoken"),
        *("sentencepiece", "datasets", "nltk", "regex", "requests", "psutil", "joblib"),
        *("networkx", "pycocotools", "gym", "gymnasium", "rich", "loguru", "termcolor", "click", "omegaconf"),
    )
)
"""Packages that join no ranks when they are imported."""
_MOST_MODULES = 50
_AVERAGES = re.compile(
    r"(?i)DataParallel|\bddp|fully_?shard|fsdp|reduce|gather|broadcast|send|recv|scatter|deepspeed|accelerate\b"
    r"|horovod|\bhvd\b|lightning|fabric|ignite|mesh|dtensor|distribute_tensor|paralleli[sz]e|zeroredundancy"
    r"|comm_hook|megatron|colossal|fairscale|average|pipelin|\brpc\b|composer|bagua|byteps|torch_xla|importlib"
    r"|__import__|\bexec\(|trainer\("
)
"""Words of code that may average gradients, or load code that does."""


def trains_alone(script: Script, reader: Reader) -> int:
    """
    The line of its `backward()` where the script surely trains in one process; 0 where it may not.

    Every module that it imports must be known, or next to it and without such code itself.
    """
    return _trains_without(_JOINS, script, reader)


def _trains_without(code: re.Pattern[str], script: Script, reader: Reader) -> int:
    steps = [call.line for call in script.calls if call.last == "backward"]
    if not steps or "torch" not in script.imported or code.search(script.text):
        return 0
    folder = posixpath.dirname(script.path)
    waiting, seen = [(script.tree, folder)], set[str]()
    while waiting:
        tree, here = waiting.pop()
        for name, base in _imports(tree, here, folder):
            found = [path for path in _places(name, base) if path not in seen and reader(path) is not None]
            if not (found or seen.intersection(_places(name, base))) or len(seen) > _MOST_MODULES:
                return 0
            for path in found:
                seen.add(path)
                text = reader(path) or ""
                if code.search(text):
                    return 0
                try:
                    waiting.append((read(path, text).tree, posixpath.dirname(path)))
                except SyntaxError:
                    return 0
    return steps[0]


def modules_nearby(script: Script, reader: Reader) -> Iterator[str]:
    """The texts of modules in the script's folder that it imports, and of those that they import."""
    folder = posixpath.dirname(script.path)
    waiting, seen = [(script.tree, folder)], set[str]()
    while waiting and len(seen) < _MOST_MODULES:
        tree, here = waiting.pop()
        for name, base in _imports(tree, here, folder):
            for path in (p for p in _places(name, base) if p not in seen):
                seen.add(path)
                if (text := reader(path)) is None:
                    continue
                yield text
                try:
                    waiting.append((read(path, text).tree, posixpath.dirname(path)))
                except SyntaxError:
                    continue


def imported_elsewhere(script: Script) -> frozenset[str]:
    """Names in the script that come from packages of which it is not known what they do."""
    return frozenset(n for n, full in script.aliases.items() if full.split(".")[0] not in _PLAIN)


def _imports(tree: ast.Module, here: str, folder: str) -> Iterator[tuple[str, str]]:
    """(dotted name, folder where it begins) of each import of another package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, level = [alias.name for alias in node.names], 0
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
            level = node.level
        else:
            continue
        base = posixpath.normpath(posixpath.join(here, *[".."] * (level - 1))) if level else folder
        yield from ((name, base) for name in names if level or name.split(".")[0] not in _PLAIN)


def _places(name: str, base: str) -> list[str]:
    """Files that `import a.b.c` may read: the modules and packages on its way."""
    parts = name.split(".")
    paths = [posixpath.join(base, *parts[:count]) for count in range(1, len(parts) + 1)]
    return [file for path in paths for file in (f"{path}.py", f"{path}/__init__.py")]


@fault("ranks-train-alone", SHELL, each="launches")
def ranks_train_alone(job: JobFile, launch: Launch) -> Found:
    """
    Several ranks are started, and nothing in the script joins them.

    Why: a launcher starts the script once for each GPU, and no more.  Without a process group each rank
    trains the whole model on all the data, alone, and writes the same checkpoint; torch gives no message.

    Fix: add init_process_group(), DistributedDataParallel and a DistributedSampler: about ten lines, in the
    documentation under "Start in five minutes", "A script for one GPU".
    """
    count = launch.world_size or launch.ranks_per_node or 1
    name = f"{launch.module.replace('.', '/')}.py" if launch.module else launch.script
    text = text_of(job, name) if launch.launcher in NODE_LAUNCHERS and count > 1 else ""
    if "backward" not in text:
        return
    try:
        script = read(name, text)
    except SyntaxError:
        return
    if line := trains_alone(script, partial(_at_hand, job)):
        found = f"{count} ranks, and {name}:{line} trains in one process: nothing joins them"
        yield launch.line, found, "a process group"


def _at_hand(job: JobFile, path: str) -> str | None:
    """The text of exactly this file, next to the job file or in the working directory."""
    for place in (path, posixpath.normpath(posixpath.join(posixpath.dirname(job.path), path))):
        if place in job.others:
            return job.others[place]
    return job.nearby(job.path, path) if job.nearby else None


@fault("gradients-never-averaged", SCRIPT)
def gradients_never_averaged(read: Reading) -> Found:
    """
    Ranks join a process group, and nothing averages their gradients.

    Why: after init_process_group() each rank still has a model of its own: every rank trains on its data
    alone, and the models drift apart; torch gives no message.

    Fix: put DistributedDataParallel around the model, and use a DistributedSampler for its data: in the
    documentation under "Start in five minutes", "A script for one GPU".
    """
    if (joined := read.script.named(INIT)) and (line := _trains_without(_AVERAGES, read.script, read.nearby)):
        found = f"ranks join in line {joined[0].line}, and nothing averages the gradients of this backward()"
        yield line, found, "DistributedDataParallel"
