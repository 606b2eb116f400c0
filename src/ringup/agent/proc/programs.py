"""The programs and scripts that command lines start."""

import os

LAUNCHERS = {
    "torchrun": "torchrun", "accelerate": "accelerate launch", "deepspeed": "deepspeed",
    "colossalai": "colossalai run", "llamafactory-cli": "llamafactory-cli",
}  # fmt: skip
MODULES = {
    "-m torch.distributed.run": "torchrun", "-m torch.distributed.launch": "torch.distributed.launch",
    "-m accelerate.commands.launch": "accelerate launch",
    "-m deepspeed.launcher.launch": "deepspeed", "-m deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip


def launcher(line):
    """Which launcher a command line is, "" for none: `vim torchrun.md` and `ssh n torchrun` are not."""
    program, run = os.path.basename("".join(line[:1])), script(line)
    return LAUNCHERS.get(program) or MODULES.get(run) or LAUNCHERS.get(os.path.basename(run), "")


def is_python(line):
    return bool(line) and os.path.basename(line[0]).startswith("python")


def script(line):
    """The script of a Python command line, a path or "-m NAME"; "" for `-c` and for other programs."""
    if not is_python(line):
        return ""
    at = 1
    while at < len(line) and line[at].startswith("-"):
        short = not line[at].startswith("--")
        if short and line[at][-1] in "-c":
            return ""
        if short and line[at][-1] == "m":
            return "-m " + " ".join(line[at + 1 : at + 2])
        at += 2 if line[at] in ("-W", "-X") else 1
    return line[at] if at < len(line) else ""
