"""The launch line and the shells that it passes through."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict

from ringup.logs.causes.interface import network_of
from ringup.logs.causes.symptoms import (
    LAUNCHER_FRAMES,
    OWN_MODULES,
    SHELL_TEXT,
    first_value,
    is_of_a_peer,
    of_the_web,
    on,
)
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event
from ringup.logs.outcome import made_do
from ringup.logs.patterns import OF_ROLE
from ringup.logs.rule import Confidence, Found, cause, report
from ringup.rules import Fix
from ringup.units import ranges, summarize_names

_LAUNCHERS = re.compile(
    r"(?:^|/)(?:torchrun|python[\d.]*|deepspeed|accelerate|colossalai|mpirun|mpiexec|orted|prted"
    r"|pdsh|srun|conda|module|ml|horovodrun|llamafactory-cli|ray)$"
)

_EACH_ALONE = "No PMIx server was reachable|singletons will be started"
_A_PROCESS_MANAGER = Fix("`srun --mpi=pmix` (or pmi2; `srun --mpi=list`), or mpirun")
_OF_ONE_START = 8
"""Lines between the headers of two that begin at the same time."""


@cause("world-never-formed")
def world_never_formed(log: LogEvidence) -> Found:
    """From the ranks' sockets and from the counts of their frameworks, as `ringup run` saw them."""
    apart = log.all("run-apart")[-1:]
    if apart:
        return report(apart, first_value(apart, "text"))
    if alone := log.all("mpi-singleton", has=_EACH_ALONE):
        text = "MPI finds no process manager: each task is a job of its own, rank 0 of 1"
        return report(alone, text, "medium", fix=_A_PROCESS_MANAGER)
    pairs = [(a, b) for a, b in itertools.pairwise(log.all("nccl-tests")) if a.file == b.file]
    pairs = [(a, b) for a, b in pairs if b.line - a.line <= _OF_ONE_START and not (a["end"] or b["end"])]
    text = "nccl-tests began again before it had ended: its processes know nothing of each other"
    fix = Fix("build it with MPI=1 (and MPI_HOME), start it by mpirun or srun --mpi")
    return report(itertools.chain(*pairs), text, "medium", fix=fix)


@cause("slurm-tasks-mismatch")
def slurm_tasks_mismatch(log: LogEvidence) -> Found:
    """
    Slurm's tasks do not match nodes x devices of the trainer.

    Why: the trainer takes its ranks from Slurm's variables; too few or too many tasks make ranks
    twice or never.
    Fix: set `--nodes` and `--ntasks-per-node` to the trainer's num_nodes and devices.
    In logs: `GLOBAL_RANK: 1, MEMBER: 2/8` twice, or only for the first half of the members.
    """
    if refused := log.all("slurm-mismatch"):
        return report(refused, "the trainer says its devices and nodes do not fit Slurm's tasks")
    if alone := log.all("mpi-singleton", lacks=_EACH_ALONE):
        text = "MPI finds no process manager, and ends"
        return report(alone, text, "medium", fix=_A_PROCESS_MANAGER)
    if log.outcome.went_on:
        return None
    rows = log.all("global-rank")
    started = log.all("command", "slurm-variable", "batch-option", has="srun|SLURM")
    members = Counter((e["member"], e["nranks"]) for e in rows)
    twice = [e for e in rows if members[e["member"], e["nranks"]] > 1]
    if twice and started:
        times = max(members.values())
        text = f"every global rank is started {times} times: one task per node where ranks were wanted"
        return report(twice, text)
    if twice:
        return None  # without Slurm two nodes have one number
    wanted = max((e.number("nranks") for e in rows), default=0)
    numbers = sorted({e.number("member") for e in rows})
    is_head = numbers == list(range(1, len(numbers) + 1)) and 2 * len(numbers) <= wanted
    if len({e["nranks"] for e in rows}) > 1 or not is_head or log.has("all-registered"):
        return None
    text = f"only the first {len(numbers)} of {wanted} members were started"
    return report(rows, text, "medium" if started or log.outcome.failed else "low")


_UNKNOWN = re.compile(r"unrecognized (?:arguments|option)|[Nn]o such option|invalid choice")


@cause("launcher-argument-misread", overcome=None)
def launcher_argument_misread(log: LogEvidence) -> Found:
    value = r"(?i)false|true|none|null|yes|no|-.*|[\d.]+(?::\d+)?|[^\s=]+=\S+"
    if strange := log.all("entrypoint", entrypoint=value):
        return report(strange, f"the launcher took {strange[0]['entrypoint']!r} for the script")
    if usage := log.all("launcher-usage", lacks="local[-_]rank"):
        if word := usage[0]["word"]:
            return report(usage, f"the launcher took {word!r} for the script")
        unknown = [e for e in usage if _UNKNOWN.search(e["text"] or e["option"])]
        said = first_value(unknown, "text", "option")
        text = f"the launcher does not know an argument: {said[:160]}" if unknown else ""
        sure: Confidence = "high" if unknown else "medium"
        return report(usage, text or "the launcher refuses its own arguments", sure)
    raised = log.all("exception", type="ValueError|AssertionError")
    raised = [e for e in raised if LAUNCHER_FRAMES.search(e["frame"]) and log.tags_at(e) == {"exception"}]
    if raised and not log.has("no-cuda"):
        return report(
            raised, f"the launcher refuses an argument or a variable: {raised[0]['text'][:160]}", "medium"
        )
    shell = log.all("name-tried", host=".*[/=].*")
    return report(shell, f"{first_value(shell, 'host')!r} was taken for the address of the head", "low")


@cause("hostfile-missing", overcome=None)
def hostfile_missing(log: LogEvidence) -> Found:
    """
    DeepSpeed found no host file, so it can only use this machine.

    Why: by default it looks for /job/hostfile; several nodes need one.
    Fix: `--hostfile FILE` with one `HOST slots=N` line per node.
    In logs: `Unable to find hostfile`, then `Num nodes is >1 but no extra nodes available`.
    """
    needed, warned = log.all("hostfile-needed"), log.all("hostfile-missing")
    if needed:
        return report([*needed, *warned], "several nodes are wanted and no host file names them")
    nodes = log.nodes_wanted(("nodes2", "nodes3", "nodes4", "nodes5"))
    text = f"{nodes} nodes are wanted and no host file names them"
    return report(warned, text, "medium") if nodes > 1 and not log.outcome.went_on else None


@cause("device-ordinal-not-visible", overcome=None)
def device_ordinal_not_visible(log: LogEvidence) -> Found:
    """
    A rank selected a GPU number that its process does not see.

    Why: more ranks than visible GPUs, the global rank used as device on a second node, or one GPU
    bound per task.
    Fix: start as many ranks per node as visible devices; `torch.cuda.set_device(LOCAL_RANK)`;
    `--gpus-per-node` rather than `--gpus-per-task`.
    In logs: `CUDA error: invalid device ordinal`.
    """
    # A peer's number that has no meaning here (transport/p2p) is another cause: GPUs hidden between ranks.
    bad = [e for e in log.all("bad-ordinal") if not is_of_a_peer(e)]
    visible = log.all("visible-devices")
    devices = first_value(visible, "devices")
    more = f" (CUDA_VISIBLE_DEVICES={devices})" if devices else ""
    if bad:
        return report([*bad, *visible[:1]], f"a process requested a GPU number that it does not see{more}")
    if log.has("gpu-lost", "xid", "driver-library"):
        return None
    none = [e for e in log.all("no-device") if not made_do(e)]
    return report(none, "a process sees no GPU at all: CUDA_VISIBLE_DEVICES, container or driver")


@cause("same-gpu-twice")
def same_gpu_twice(log: LogEvidence) -> Found:
    twice = log.all("same-gpu")
    if not twice:
        shared = _on_one_bus_id(log)
        text = "ranks of one communicator begin with one GPU (bus id), which NCCL calls invalid usage"
        return report([*shared, *log.all("nccl-usage")[:1]], text, "medium") if shared else None
    ranks = [e.number(f) for e in twice for f in ("a", "b") if e[f]]
    hosts = {c.rank: c.host for c in log.communicators if c.host}
    pairs = [{hosts.get(e.number("a")), hosts.get(e.number("b"))} - {None} for e in twice if e["a"]]
    text = f"{'ranks ' + ranges(ranks) if ranks else 'several ranks'} sit on one GPU"
    if any(len(pair) == 2 for pair in pairs):
        text += ", though on two hosts: NCCL takes the hosts for one (cloned identity)"
    if device := first_value(twice, "device"):
        text += f" (bus id {device})"
    return report(twice, text, ranks=ranks)


def _on_one_bus_id(log: LogEvidence) -> list[Event]:
    """Init lines of two ranks with one host, communicator and bus id, where NCCL was used wrongly."""
    # NCCL also calls a setting that it cannot read invalid usage.
    of_a_setting = log.has("bad-setting", "no-algorithm", "net-not-found")
    if of_a_setting or log.outcome.set_up or not log.has("nccl-usage"):
        return []
    found: dict[tuple[str, ...], dict[str, Event]] = defaultdict(dict)
    for event in log.all("init"):
        match = re.search(r"busId (\w+) commId (\w+)", event["more"])
        if match and event.host:
            found[event.host, match[1], match[2]].setdefault(event["rank"], event)
    return next((list(ranks.values())[:2] for ranks in found.values() if len(ranks) > 1), [])


_IP = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


@cause("ray-node-address-differs", overcome=None)
def ray_node_address_differs(log: LogEvidence) -> Found:
    given = log.all("job-allocated")
    wanted = [e for e in log.all("ray-node-wanted") if not made_do(e)]
    wanted = [e for e in wanted if not any(a.place > e.place for a in given)]
    known = {e[f] for e in log.all("ray-nodes") for f in ("address", "head", "local") if e[f]}
    named = [e for e in wanted if not _IP.fullmatch(e["address"])]
    strange = [e for e in wanted if known and e["address"] not in known]
    if refused := [e for e in wanted if not (known or named) and "can fulfill" in e.text]:
        where = refused[0]["address"]
        return report(refused, f"Ray knows no node at {where} with the resources asked for", "medium")
    if not (strange or named):
        return None
    if not strange:
        text = f"a placement is bound to the name {named[0]['address']}, Ray knows its nodes by address"
        return report(named, text, "medium")
    address = strange[0]["address"]
    kinds = {network_of(other) for other in known}
    text = f"a placement is bound to {address}, Ray knows {', '.join(sorted(known)[:3])}"
    return report(strange, text, "medium" if network_of(address) in kinds else "high")


@cause("ssh-not-passwordless", overcome=None)
def ssh_not_passwordless(log: LogEvidence) -> Found:
    denied = [e for e in log.all("ssh-denied") if not of_the_web(e)]
    code, connect = log.all("ssh-255"), log.all("ssh-connect")
    if not (denied or connect) and log.all("name-unknown", has="ssh:"):
        return None  # ssh reports why it failed: it does not know the name
    if connect and not denied:
        broken = [e for e in connect if not e["reason"]]  # another cause has the reason
        return report([*broken, *code] if broken else [], "ssh's connection to a node breaks", "low")
    if denied or code:
        text = "the launcher's ssh login to a node fails"
        return report([*denied, *code], text, "high" if denied else "low")
    text = "mpirun cannot start its daemon on a node, and does not say why"
    return report(log.all("mpi-unreachable"), text, "low")


@cause("environment-breaks-remote-shell", overcome=None)
def environment_breaks_remote_shell(log: LogEvidence) -> Found:
    """
    The launcher pastes the whole environment into a shell line, and a value breaks it.

    Why: values with blanks, quotes or newlines, and read-only names, are not shell words.
    Fix: forward only named variables, quoted; or start each node with torchrun itself.
    In logs: `export: ...: not a valid identifier`, `readonly variable`, a path where a host should be.
    """
    if broken := log.all("shell-broken"):
        return report(broken, "the shell cannot read the environment the launcher put before the command")
    shell = [e for e in log.all("name-tried") if SHELL_TEXT.search(e["host"])]
    text = f"{first_value(shell, 'host')!r} is used as the head's address: a broken shell line"
    return report(shell, text, "medium")


@cause("python-or-launcher-missing", overcome=None)
def python_or_launcher_missing(log: LogEvidence) -> Found:
    modules = [e for e in log.all("module-missing") if OWN_MODULES.match(e["module"]) and not made_do(e)]
    modules = [e for e in modules if _ENDS_PYTHON.search(e.text) or "exception" in log.tags_at(e)]
    # a container that does not start is another cause
    found = log.all("command-missing", lacks="pyxis: |enroot")
    missing = [*(e for e in found if _concerns_the_job(e)), *modules]
    setup = [e for e in missing if first_value([e], "name", "name2") in ("module", "ml")]
    if len(setup) < len(missing):
        missing = [*(e for e in missing if e not in setup), *setup]
    elif setup:
        # A missing command ends its script, as under `set -e`, with 127, or is the last line.
        last = setup[-1]
        later = [e for e in log.events if e.file == last.file and e.line > last.line]
        of_ranks = OF_ROLE["nccl"] | OF_ROLE["failure"] | OF_ROLE["hang"]
        earlier = (e for e in log.events if e.file == last.file and e.line < last.line)
        above = any(e.rank is not None or e.pid or e.tag in of_ranks for e in earlier)
        codes = [e for e in later if (e.tag, e["code"]) == ("exit", "127")]
        is_ended = not above and all(e.tag == "command-missing" or e in codes for e in later)
        if not is_ended or not (codes or log.files[last.file].lines == last.line):
            text = "the shell has no environment modules, and the script goes on without them"
            return report(setup, text, "low", severity="warning")
    if not missing:
        return None
    what = first_value(missing, "name", "name2", "name3", "dir", "script", "module")
    where = on(summarize_names(filter(None, (e.host or e.label for e in missing))))
    is_there = re.search(r"Errno 13\b|[Pp]ermission denied", missing[0].text)
    lack = "is there, but may not be read or executed" if is_there else "does not exist"
    return report(missing, f"{what or 'the interpreter or launcher'} {lack}{where}")


_ENDS_PYTHON = re.compile(
    r"^(?:\W{0,8}\w{1,20}[\]):|]{1,4} ?)?(?:E {1,9})?(?:ModuleNotFound|Import)Error: No module"
    r"|python[\d.t]{0,9}: "
    r"|Error while finding module|required"
)
"""Python's own lines; a program that reports a failed import in another way goes on without it."""
_PROGRAM = re.compile(
    r"python|torchrun|deepspeed|accelerate|/bin/|execv|executable|unable to launch|orted|Conda|Environment"
)
_OTHER_FILE = re.compile(r"FileNotFoundError|\.so\b|\.so:|\.json|\.yaml|/sys/|/dev/|libnccl")


def _concerns_the_job(event: Event) -> bool:
    """Whether the thing not found is an interpreter, a launcher, a directory or the script itself."""
    if name := first_value([event], "name", "name2"):
        return bool(_LAUNCHERS.search(name)) or "/bin/" in name or name.endswith(".py")
    if event["script"]:
        return not re.fullmatch(r"(?i)(?:\S*/)?(?:-[^\s/]*|false|true|none|\d+)", event["script"])
    return bool(
        event["dir"] or event["name3"] or (_PROGRAM.search(event.text) and not _OTHER_FILE.search(event.text))
    )
