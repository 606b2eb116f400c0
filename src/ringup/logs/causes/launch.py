"""The launch line and the shells it passes through."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import failure, is_of_a_peer, made_do, of_the_web, went_on
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story

_LAUNCHERS = re.compile(
    r"(?:^|/)(?:torchrun|python[\d.]*|deepspeed|accelerate|colossalai|mpirun|mpiexec|orted|prted"
    r"|pdsh|srun|conda|module|"
    r"horovodrun|llamafactory-cli|ray)$"
)
_OWN_MODULES = re.compile(
    r"^(?:torch|deepspeed|accelerate|colossalai|transformers|horovod|mpi4py|jax|vllm|llamafactory"
    r"|megatron)(?:\.|$)"
)


@cause("slurm-tasks-mismatch")
def slurm_tasks_mismatch(story: Story) -> Iterator[Cause]:
    """
    Slurm's tasks do not match nodes x devices of the trainer.

    Why: the trainer takes its ranks from Slurm's variables; too few or too many tasks make ranks
    twice or never.

    Fix: `--nodes` and `--ntasks-per-node` equal to the trainer's num_nodes and devices.

    In logs: `GLOBAL_RANK: 1, MEMBER: 2/8` twice, or only for the first half of the members.
    """
    said = story.all("slurm-mismatch")
    if said:
        yield seen(said, "the trainer says its devices and nodes do not fit Slurm's tasks", "high")
        return
    rows = story.all("global-rank")
    members = Counter((e["member"], e["nranks"]) for e in rows)
    twice = [e for e in rows if members[e["member"], e["nranks"]] > 1]
    by_slurm = any(
        "srun" in e.text or "SLURM" in e.text for e in story.all("command", "slurm-variable", "batch-option")
    )
    if twice and not went_on(story):
        yield seen(
            twice,
            f"every global rank is started {max(members.values())} times: one task per node where "
            f"ranks were wanted",
            "high" if by_slurm else "medium",
        )
        return
    wanted = max((e.number("nranks") for e in rows), default=0)
    numbers = sorted({e.number("member") for e in rows})
    if not rows or 2 * len(numbers) > wanted or numbers != list(range(1, len(numbers) + 1)):
        return
    if story.has("all-registered") or went_on(story):
        return
    text = f"only the first {len(numbers)} of {wanted} members were started"
    yield seen(rows, text, "medium" if by_slurm or failure(story) else "low")


@cause(problems.LAUNCHER_ARGUMENT_MISREAD, passing=True)
def launcher_argument_misread(story: Story) -> Iterator[Cause]:
    """An option's value was taken for something else (the script, an address)."""
    strange = [
        e
        for e in story.all("entrypoint")
        if re.fullmatch(
            r"(?i)(?:false|true|none|null|yes|no|-.*|\d+|[\d.]+(?::\d+)?|\S+=\S+)", e["entrypoint"] or "x"
        )
    ]
    if strange:
        yield seen(strange, f"the launcher took {strange[0]['entrypoint']!r} for the script", "high")
        return
    usage = [e for e in story.all("launcher-usage") if not re.search(r"local[-_]rank", e.text)]
    if usage:
        word = usage[0]["word"]
        text = (
            f"the launcher took {word!r} for the script" if word else "the launcher refuses its own arguments"
        )
        yield seen(usage, text, "high" if word else "medium")
        return
    shell = [e for e in story.all("name-tried") if re.search(r"[/=]", e["host"])]
    if shell:
        yield seen(shell, f"{shell[0]['host']!r} was taken for the address of the head", "low")


@cause(problems.LOCAL_RANK_ARGUMENT_REJECTED, passing=True)
def local_rank_argument_rejected(story: Story) -> Iterator[Cause]:
    """`torch.distributed.launch` passes `--local-rank=N`, the script knows only another spelling or none."""
    said = story.all("local-rank-argument")
    if said:
        yield seen(said, "the script refuses the local-rank argument its launcher passes")


@cause("hostfile-missing", passing=True)
def hostfile_missing(story: Story) -> Iterator[Cause]:
    """
    DeepSpeed found no host file, so it can only use this machine.

    Why: it looks for /job/hostfile unless told otherwise; several nodes need one.

    Fix: `--hostfile FILE` with one `HOST slots=N` line per node.

    In logs: `Unable to find hostfile`, then `Num nodes is >1 but no extra nodes available`.
    """
    needed = story.all("hostfile-needed")
    warned = story.all("hostfile-missing")
    if needed:
        yield seen([*needed, *warned], "several nodes are wanted and no host file names them")
        return
    nodes = max(
        (e.number(f) for e in story.all("min-nodes") for f in ("nodes2", "nodes3", "nodes4", "nodes5")),
        default=0,
    )
    if warned and nodes > 1 and not went_on(story):
        yield seen(warned, f"{nodes} nodes are wanted and no host file names them", "medium")


@cause("device-ordinal-not-visible", passing=True)
def device_ordinal_not_visible(story: Story) -> Iterator[Cause]:
    """
    A rank asked for a GPU number its process does not see.

    Why: more ranks than visible GPUs, the global rank used as device on a second node, or one GPU
    bound per task.

    Fix: as many ranks per node as visible devices; `torch.cuda.set_device(LOCAL_RANK)`;
    `--gpus-per-node` rather
    than `--gpus-per-task`.

    In logs: `CUDA error: invalid device ordinal`.
    """
    # A peer's number that means nothing here (transport/p2p) is another matter: GPUs hidden between ranks.
    bad = [e for e in story.all("bad-ordinal") if not is_of_a_peer(e)]
    if bad:
        visible = next((e["devices"] for e in story.all("visible-devices")), "")
        more = f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""
        yield seen(
            [*bad, *story.all("visible-devices")[:1]],
            f"a process asked for a GPU number it does not see{more}",
        )
        return
    none = story.all("no-device")
    if none and not story.has("gpu-lost", "xid"):
        yield seen(none, "a process sees no GPU at all: CUDA_VISIBLE_DEVICES, container or driver", "medium")


@cause(problems.SAME_GPU_TWICE)
def same_gpu_twice(story: Story) -> Iterator[Cause]:
    said = story.all("same-gpu")
    if not said:
        if shared := _on_one_bus_id(story):
            yield seen(
                [*shared, *story.all("nccl-usage")[:1]],
                "ranks of one communicator begin with one GPU (bus id), which NCCL calls invalid usage",
                "medium",
            )
        return
    ranks = [e.number(f) for e in said for f in ("a", "b") if e[f]]
    pairs = {(e["a"], e["b"]) for e in said if e["a"]}
    hosts = {c.rank: c.host for c in story.communicators if c.host}
    apart = [(a, b) for a, b in pairs if len({hosts.get(int(a)), hosts.get(int(b))} - {None}) == 2]
    device = next((e["device"] for e in said if e["device"]), "")
    text = f"ranks {story.show_ranks(ranks)} sit on one GPU" if ranks else "several ranks sit on one GPU"
    if apart:
        text += ", though on two hosts: the hosts look like one to NCCL (cloned identity)"
    yield seen(said, text + (f" (bus id {device})" if device else ""), "high", ranks=ranks)


def _on_one_bus_id(story: Story) -> list[Event]:
    """Init lines of two ranks with one host, communicator and bus id, where NCCL was used wrongly."""
    if not story.has("nccl-usage") or story.init_complete:
        return []
    found: dict[tuple[str, ...], dict[str, Event]] = {}
    for event in story.all("init"):
        match = re.search(r"busId (\w+) commId (\w+)", event["more"])
        if match and event.host:
            found.setdefault((event.host, *match.groups()), {}).setdefault(event["rank"], event)
    return next((list(ranks.values())[:2] for ranks in found.values() if len(ranks) > 1), [])


@cause(problems.SSH_NOT_PASSWORDLESS, passing=True)
def ssh_not_passwordless(story: Story) -> Iterator[Cause]:
    denied = [e for e in story.all("ssh-denied") if not of_the_web(e)]
    code = story.all("ssh-255")
    connect = story.all("ssh-connect")
    if not (denied or connect) and any("ssh:" in e.text for e in story.all("name-unknown")):
        return  # ssh says why it failed: it does not know the name
    if not (denied or code or connect):
        unstarted = story.all("mpi-unreachable")
        if unstarted:
            yield seen(unstarted, "mpirun cannot start its daemon on a node, and does not say why", "low")
        return
    if connect and not denied:
        host, reason = connect[0]["host"], connect[0]["reason"]
        yield seen(
            [*connect, *code],
            f"ssh does not reach {host or 'a node'}: {reason or 'the connection breaks'}",
            "medium",
        )
        return
    yield seen([*denied, *code], "a node refuses the launcher's ssh login", "high" if denied else "medium")


@cause("environment-breaks-remote-shell", passing=True)
def environment_breaks_remote_shell(story: Story) -> Iterator[Cause]:
    """
    The launcher pastes the whole environment into a shell line, and a value breaks it.

    Why: values with blanks, quotes or newlines, and read-only names, are not shell words.

    Fix: forward only named variables, quoted; or start each node with torchrun itself.

    In logs: `export: ...: not a valid identifier`, `readonly variable`, a path where a host should be.
    """
    broken = story.all("shell-broken")
    if broken:
        yield seen(broken, "the shell cannot read the environment the launcher put before the command")
        return
    shell = [e for e in story.all("name-tried") if re.search(r"[/=$\"']|\.(?:sh|bashrc)\b", e["host"])]
    if shell:
        yield seen(
            shell,
            f"{shell[0]['host']!r} stands where the head's address should be: a broken shell line",
            "medium",
        )


@cause(problems.PYTHON_OR_LAUNCHER_MISSING, passing=True)
def python_or_launcher_missing(story: Story) -> Iterator[Cause]:
    missing = [e for e in story.all("command-missing") if _concerns_the_job(e)]
    modules = [e for e in story.all("module-missing") if _OWN_MODULES.match(e["module"]) and not made_do(e)]
    if not missing and not modules:
        return
    first = (missing or modules)[0]
    what = next((first[f] for f in ("name", "name2", "name3", "dir", "script", "module") if first[f]), "")
    where = f" on {first.host or first.label}" if first.host or first.label else " on one node"
    yield seen([*missing, *modules], f"{what or 'the interpreter or launcher'} does not exist{where}")


def _concerns_the_job(event: Event) -> bool:
    """Whether the thing not found is an interpreter, a launcher, a directory or the script itself."""
    name = event["name"] or event["name2"] or event["name3"]
    if name:
        return bool(_LAUNCHERS.search(name)) or ("/bin/" in name) or name.endswith(".py")
    if event["script"]:
        return not re.fullmatch(r"(?i)(?:\S*/)?(?:-\S*|false|true|none|\d+)", event["script"])
    if event["dir"]:
        return True
    return bool(
        re.search(
            r"python|torchrun|deepspeed|accelerate|/bin/|execv|executable|orted|Conda|Environment", event.text
        )
    ) and not (re.search(r"FileNotFoundError|\.so\b|\.so:|\.json|\.yaml|/sys/|/dev/|libnccl", event.text))
