"""
One launch: the starter, the launcher, the number of nodes, the options, and the worlds that it forms.

    for launch in launches_of(job): launch.launcher, launch.nodes, launch.worlds, launch.unknown

A number that only the run knows is None, and its name is in `unknown`.

Sources: torch 2.13 `distributed/run.py`, `elastic/rendezvous/utils.py`, `static_tcp_rendezvous.py`;
accelerate 1.15 `utils/launch.py` (`prepare_multi_gpu_env`); DeepSpeed 0.19.8 `launcher/runner.py`;
LLaMA-Factory 0.9.5 `launcher.py`; XTuner 0.1.23 `entry_point.py`; Slurm's srun(1).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise

from ringup.launchfiles import marks
from ringup.launchfiles.directives import (
    Directive,
    allocated_count,
    gpus_per_node,
    last,
    node_count,
    tasks_per_node,
)
from ringup.launchfiles.marks import COUNT_NAMES, has_mark, is_mark
from ringup.launchfiles.passing import DOCKER, passed_on
from ringup.launchfiles.programs import MPI_OPTIONS, PROGRAMS
from ringup.launchfiles.shell import Command, Job
from ringup.launchfiles.start import CommandLine, Step, arguments
from ringup.model import LOCAL_RANKS, RANK_VARIABLES, TORCHRUN_PREFIXES
from ringup.units import plural, printable

BY_ENVIRONMENT = ("llamafactory", "swift", "xtuner")
"""Launchers that take NNODES, NODE_RANK, NPROC_PER_NODE and the address from the environment."""
TORCH = ("torchrun", "launch", "tune")
"""torchrun, and programs that take its options."""
NODE_LAUNCHERS = (*TORCH, "accelerate", "deepspeed", "axolotl", "trl", *BY_ENVIRONMENT)
"""Launchers that start all ranks of a node."""
_SERVERS = ("ray", "vllm")
"""Programs that another one in the same file uses."""
OTHER_SCRIPTS = ("setup.py", "prepare", "download", "preprocess", "convert", "tokenize", "process_data")
_NOT_TRAINING = re.compile("pip|venv|http.server|json.tool|site|ensurepip|virtualenv|zipfile|tensorboard")
_BY_MPI = re.compile("mpirun|mpiexec|prterun|prun|mpiexec.hydra|mpirun_rsh|aprun|ibrun")
ON_HOST = ("ssh", "gcloud", *DOCKER)
"""Starters on the one host that they name."""
_ON_ONE_HOST = {
    **dict.fromkeys(("kubectl", "pbs_tmrsh", *ON_HOST), ()),
    "blaunch": ("-z",),
    "srun": ("-w", "--nodelist"),
    "pbsdsh": ("-n", "-h"),
    "pdsh": ("-w",),
    "clush": ("-w",),
}
"""Starters on one host -> their options that name the host, if it is not a word of its own."""
_COUNTED = ("composer", "horovod")
_OTHER_LAUNCHERS = ("colossalai", *_COUNTED, "torchx", "fabric", "axolotl", "trl", "vllm", "determined")


@dataclass(frozen=True)
class PodShare:
    """A Kubernetes container's share of its machine."""

    gpu_count: int = 0
    """From its limits; 0 if they have none."""
    has_shared_memory: bool = False
    """Whether /dev/shm is a volume, or the host's own."""
    is_cut_off: bool = False
    """On the host's network without ClusterFirstWithHostNet: names of pods and services do not resolve."""
    has_rdma: bool = False
    can_lock: bool = False
    """IPC_LOCK, or all privileges."""
    is_service: bool = False
    """A service of docker compose."""
    is_on_host: bool = False
    """A service in the network of the machine itself, which all such services of a file share."""


@dataclass
class Launch:
    """A launch line after parsing."""

    job: Job
    command: Command
    start: CommandLine
    steps: tuple[Step, ...]
    started_by: str
    """srun, mpirun, ssh, ...; `batch` for the scheduler's one node, `shell` for a typed line."""
    nodes: int | None
    """Nodes on which the launcher is started."""
    per_node: int | None
    """Number of launchers on each of these."""
    replicas: int | None = None
    """Pods of a manifest; None elsewhere."""
    pods: int | None = None
    """Pods of this part of a workload, such as its workers; None if it has no parts."""
    config: Mapping[str, str] = field(default_factory=dict)
    """From accelerate's file, if available."""
    pod: PodShare | None = None
    hosts: Sequence[int] = ()
    """The slots of each host in the host file, if available; 0 without a number."""
    is_in_a_pod: bool = False
    """Whether a manifest of an operator that sets torchrun's PET_ variables names this file."""

    # -- parts of the line -------------------------------------------------------------------------

    @property
    def launcher(self) -> str:
        return self.start.launcher

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def script(self) -> str:
        return self.start.script if self.start.kind != "module" else ""

    @property
    def module(self) -> str:
        return self.start.script if self.start.kind == "module" else ""

    @property
    def wrapping(self) -> tuple[str, ...]:
        named = (self.shown(posixpath.basename(s.program)) for s in self.steps if s.role == "wrapper")
        return tuple(name for name in named if name not in ("exec", "command", "coproc", "time"))

    @cached_property
    def env(self) -> dict[str, str]:
        """The environment that the launcher sees, as far as the file sets it."""
        env = self.command.env
        for step in self.start.steps:
            env = passed_on(step, env, bool(self.job.directives))
        return {**env, **self.start.env}

    @cached_property
    def srun(self) -> Step | None:
        return next((s for s in self.steps if s.program == "srun"), None)

    def of_srun(self, *names: str) -> str:
        """The value of one of srun's options; "" without it."""
        return (self.srun.option(*names) if self.srun else None) or ""

    def option(self, *names: str) -> str:
        """The first of these options that is given, with dashes in the names; "" for none."""
        for name in names:
            value = self.start.option(name)
            if value is not None:
                return value
        return next((v for n in names if (v := self.config.get(n.replace("-", "_"), ""))), "")

    def has(self, *names: str) -> bool:
        return any(o.name[2:] in names for o in self.start.options) or any(
            self.config.get(n.replace("-", "_")) for n in names
        )

    def setting(self, option: str) -> str:
        """An option of torchrun, or its variable PET_..."""
        name = TORCHRUN_PREFIXES[0] + option.upper().replace("-", "_")
        return self.option(option) or self.env.get(name, "")

    @cached_property
    def arguments(self) -> Mapping[str, str]:
        return arguments(self.start.arguments)

    @property
    def is_opaque(self) -> bool:
        """Whether unknown words may contain further options."""
        return bool(self.start.opaque) or any(has_mark(o.name) for o in self.start.options)

    # -- numbers -----------------------------------------------------------------------------------

    def number(self, text: str) -> int | None:
        """A count as written, or from the allocation; None if only the run knows it."""
        if text.isascii() and text.isdecimal() and len(text) < 8:
            return int(text)
        if match := re.fullmatch(r"(\d{1,6}):(\d{1,6})", text):
            return int(match[2]) if match[1] == match[2] else None
        mark = self.job.marks.of(text)
        if mark is None:
            return None
        if mark.name in COUNT_NAMES and not self.allocated:
            return self.replicas
        return allocated_count(mark.name, self.asked, self.allocated) or None

    @cached_property
    def groups(self) -> list[int]:
        """The parts of a heterogeneous job on which it starts; [0] in other jobs."""
        step, directives = self.srun, self.job.directives
        groups = (step and step.option("--het-group", "--pack-group")) or "0"
        spans = re.findall(r"(\d{1,4})(?:-(\d{1,4}))?", groups)
        parts = sorted({d.component for d in directives})
        return [part for part in parts if any(int(low) <= part <= int(high or low) for low, high in spans)]

    @cached_property
    def asked(self) -> list[Directive]:
        """The requests for the first of these parts."""
        return [d for d in self.job.directives if d.component in self.groups[:1]]

    @cached_property
    def allocated(self) -> int:
        """Nodes that the file requests from the scheduler; 0 without a request."""
        directives = self.job.directives
        counts = [node_count([d for d in directives if d.component == part])[0] for part in self.groups]
        return sum(counts) if all(counts) else 0

    def is_node_count(self, text: str) -> bool:
        mark = self.job.marks.of(text)
        return mark is not None and mark.name in COUNT_NAMES

    @cached_property
    def nnodes_text(self) -> str:
        """The launcher's number of nodes, as written; "" without one."""
        if self.launcher in TORCH:
            return self.setting("nnodes")
        if self.launcher == "accelerate":
            return self.option("num-machines")
        if self.launcher in BY_ENVIRONMENT:
            return self.env.get("NNODES", "")
        if self.launcher in ("deepspeed", "colossalai"):
            return self.option("num-nodes")
        return ""

    @cached_property
    def nnodes(self) -> int | None:
        """Nodes of a world by the launcher's own options; None if unknown."""
        if self.start.option("standalone") is not None:
            return None if has_mark(self.nnodes_text) else 1
        if self.launcher == "colossalai" and self.option("host"):
            return len(self.option("host").split(","))
        if self.launcher in _COUNTED:
            return self._counts[0]
        if self.hosts and not self.has("host", "include", "exclude", "num-nodes"):
            return len(self.hosts)
        if self.nnodes_text:
            return self.number(self.nnodes_text)
        if self.is_opaque or self.unread_config or self.is_set_outside:
            return None
        if self.launcher == "colossalai":
            return None if self.has("host", "hostfile") else 1
        if self.launcher in ("axolotl", "trl") or self.launcher not in NODE_LAUNCHERS:
            return None
        if self.launcher == "deepspeed":
            count = len(self.option("include").split("@"))
            return None if self.option("hostfile") and count == 1 else count
        return 1

    @cached_property
    def _counts(self) -> tuple[int | None, int | None]:
        """(nodes, ranks on each) by the options of composer (`cli/launcher.py`) and horovodrun."""
        words = (part for text in self.command.texts for part in text.split("=", 1))
        given = {name.lstrip("-").replace("-", "_"): value for name, value in pairwise(words)}
        total, each, hosts = (
            next((given[n] for n in names.split() if n in given), "")
            for names in ("world_size np num_proc", "n nproc", "H hosts")
        )
        if self.launcher == "composer":
            count, ranks = self.number(total), self.number(each)
            return (count // ranks if count and ranks else None if total else 1), ranks
        nodes = len(hosts.split(",")) if hosts and not has_mark(hosts) else None
        return nodes, (self.number(total) or 0) // nodes or None if nodes else None

    @property
    def unread_config(self) -> bool:
        """Whether a missing file may have further settings."""
        return self.launcher == "accelerate" and self.has("config-file") and not self.config

    @cached_property
    def is_set_outside(self) -> bool:
        """Whether an operator sets torchrun's PET_ variables."""
        is_read = self.is_in_a_pod or "$PET_" in self.job.text or "${PET_" in self.job.text
        return self.started_by in ("PyTorchJob", "TrainJob") or (self.started_by == "shell" and is_read)

    @property
    def is_by_ray(self) -> bool:
        """Whether Ray starts the ranks on the nodes of its cluster: of verl, of a script of `ray job`."""
        is_job = any(step.program == "ray" for step in self.steps)
        is_near = not self.is_away or self.started_by == "RayJob"
        return self.launcher == "python" and (is_job or self.module.startswith("verl.")) and is_near

    @cached_property
    def ranks_per_node(self) -> int | None:
        text = {
            "accelerate": self.option("num-processes"),
            "deepspeed": self.option("num-gpus", "num-accelerators"),
            **dict.fromkeys(BY_ENVIRONMENT, self.env.get("NPROC_PER_NODE", "")),
        }.get(self.launcher, self.setting("nproc-per-node"))
        if self.launcher in _COUNTED:
            return self._counts[1]
        if self.is_by_ray:
            return self.number(self.arguments.get("trainer.n-gpus-per-node", ""))
        if self.launcher == "python":
            counted = self.job.marks.all_of(self.env.get(LOCAL_RANKS[0], ""))
            if any(mark.site == "loop" for mark in counted):
                return None
            return self.per_node if self.is_away else 1
        if text in ("gpu", "auto") or (self.launcher == "llamafactory" and not text):
            return gpus_per_node(self.asked)[0] or None
        if not text and self.launcher in TORCH:
            return None if self.is_opaque or self.is_set_outside else 1
        if self.launcher == "deepspeed" and not text and len({*self.hosts}) == 1 and not self.has("include"):
            return self.hosts[0] or None
        count = self.number(text)
        if self.launcher == "accelerate" and count is not None:
            nodes = self.nnodes
            return count // nodes if nodes else None
        return count

    @property
    def instances(self) -> int | None:
        """Number of times that the launcher is started."""
        if self.nodes is None or self.per_node is None or self.command.is_of_some:
            return None
        return self.nodes * self.per_node

    # -- rendezvous --------------------------------------------------------------------------------

    @cached_property
    def backend(self) -> str:
        """static or c10d, as the launcher reads it."""
        if self.start.option("standalone") is not None:
            return "c10d"
        if self.launcher in BY_ENVIRONMENT:
            return "c10d" if self.env.get("RDZV_ID") else "static"
        return self.setting("rdzv-backend") or "static"

    @cached_property
    def endpoint(self) -> str:
        """HOST or HOST:PORT of the rendezvous; "" if it is not set."""
        if self.start.option("standalone") is not None:
            return "localhost:0"
        if self.launcher == "accelerate":
            host, port = self.option("main-process-ip"), self.option("main-process-port")
        elif self.launcher in TORCH:
            if (own := self.setting("rdzv-endpoint")) or self.backend != "static":
                return own
            host, port = self.setting("master-addr"), self.setting("master-port")
        else:
            host = self.option("master-addr") or self.env.get("MASTER_ADDR", "")
            port = self.option("master-port") or self.env.get("MASTER_PORT", "")
        return f"{host}:{port}" if host and port else host

    @property
    def port(self) -> str:
        """The endpoint's port as written, or of its own option; "" without one."""
        port = self.endpoint.rpartition(":")[2] if ":" in self.endpoint else ""
        return port or self.setting("master-port") or self.option("main-process-port")

    @property
    def host(self) -> str:
        """The endpoint's host without port and brackets."""
        text = self.endpoint
        host = text.rpartition(":")[0] if text.count(":") == 1 else text
        return (host or text).strip("[]")

    @property
    def host_is_own(self) -> str:
        """Why the endpoint is each node's own: `localhost`, `$(hostname)`; "" if it is not."""
        if re.fullmatch(r"localhost|127\.\d+\.\d+\.\d+|::1|0\.0\.0\.0", self.host):
            return self.host
        mark = self.job.marks.of(self.host)
        if mark and mark.name in (marks.OWN_NAME, marks.OWN_ADDRESS) and mark.site == "task":
            return self.job.marks.shown(self.host)
        of_round = self.is_one_a_round and self.host and self._started_on.endswith(self.host)
        return f"{self.job.marks.shown(self.host)}, another host in each round" if of_round else ""

    @property
    def node_rank_text(self) -> str:
        if self.launcher in BY_ENVIRONMENT:
            return self.env.get("NODE_RANK", "")
        if self.launcher == "accelerate":
            return self.option("machine-rank")
        return self.setting("node-rank")

    @property
    def world_size(self) -> int | None:
        """Ranks of one world."""
        if self.launcher == "python":
            return self.instances if self.is_away else None
        nodes = self.nnodes
        if self.launcher == "accelerate" and self.option("num-processes"):
            return self.number(self.option("num-processes"))
        is_part = self.has("include", "exclude", "num-nodes", "num-gpus", "num-accelerators")
        if self.launcher == "deepspeed" and all(self.hosts) and not is_part and self.hosts:
            return sum(self.hosts)
        if self.launcher == "deepspeed" and (listed := self.option("include")):  # a:0,1@b:0
            slots = [n for part in listed.split("@") for n in part.partition(":")[2].split(",")]
            return len(slots) if all(map(str.isdecimal, slots)) else None
        return nodes * self.ranks_per_node if nodes and self.ranks_per_node else None

    # -- worlds ------------------------------------------------------------------------------------

    @cached_property
    def worlds(self) -> int | None:
        """Number of worlds that the launch forms; None if unknown."""
        count, wanted = self.instances, self.nnodes
        if self.is_set_outside and not self.nnodes_text and self.start.option("standalone") is None:
            return 1
        if self.launcher == "ray":
            return 1  # all its nodes join the head
        if self.launcher in _OTHER_LAUNCHERS:
            return 1 if count in (1, None) and not self.is_away else None
        if self.launcher == "python":
            return None if self.is_away and self.instances is None and not self.is_by_ray else 1
        if self.launcher == "deepspeed":
            return self._worlds_of_deepspeed()
        if self.is_broken:
            return None
        if not self.is_away:
            return 1
        if self.is_node_count(self.nnodes_text) and self.per_node == 1 and not self.host_is_own:
            return count if self.meets_itself else 1
        if count is None and self.meets_itself:
            return wanted if wanted and wanted > 1 else None
        if count is None or not wanted:
            return None
        if self.is_part:
            return 1
        if self.left_out:
            return 1 if self.backend == "c10d" else None
        if wanted == 1 or self.meets_itself:
            return count
        return None if count % wanted else count // wanted

    @property
    def is_part(self) -> bool:
        """Whether it is one node of a world, whose other nodes other lines start."""
        is_one = self.is_away and self.instances == 1 and bool(self.node_rank_text)
        is_group = self.started_by == "LeaderWorkerSet"  # its pods are all nodes
        return is_one and (self.nnodes or 0) > 1 and not self.meets_itself and not is_group

    @property
    def left_out(self) -> int:
        """
        Nodes for which the one rendezvous of torchrun has no place; 0 if none, or if unknown.

        With c10d their agents wait until the others end, and fail (`dynamic_rendezvous.py`); static, their
        ranks take the numbers of the first node's at one store.
        """
        count, wanted = self.instances or 0, self.nnodes or 0
        is_one = self.launcher in TORCH and self.per_node == 1 and bool(self.endpoint)
        return count - wanted if is_one and not self.meets_itself and 0 < wanted < count else 0

    @property
    def is_away(self) -> bool:
        """Whether a starter starts it on other nodes than the one that reads the file."""
        return self.started_by not in ("batch", "shell")

    @property
    def meets_itself(self) -> bool:
        """Whether each node's launcher can only join itself."""
        if self.launcher in BY_ENVIRONMENT:
            return bool(self.host_is_own)
        if self.launcher not in (*TORCH, "accelerate") or self.is_opaque:
            return False
        is_unset = not self.endpoint and not self.is_set_outside and not self.unread_config
        return bool(self.host_is_own) or (is_unset and self.launcher in TORCH)

    @property
    def is_broken(self) -> bool:
        """Whether the launcher refuses the line, or an option is empty."""
        is_empty = any(o.value == "" and not o.is_flag and o.is_known for o in self.start.options)
        return is_empty or any(not o.is_known and not has_mark(o.name) for o in self.start.options)

    def _worlds_of_deepspeed(self) -> int | None:
        is_many = self.has("hostfile", "include") or self.is_opaque or self.start.option("no-ssh") is not None
        if not self.is_away or is_many:
            return 1 if not self.is_away or self.instances == 1 else None
        return self.instances

    @property
    def is_one_a_round(self) -> bool:
        """Whether a loop starts it on another host in each round."""
        is_in_loop = self.command.loop is not None
        return is_in_loop and any(mark.site == "loop" for mark in self.job.marks.all_of(self._started_on))

    @property
    def _started_on(self) -> str:
        """The host that a starter names; "" for none."""
        step = next((s for s in self.steps if s.role == "starter"), None)
        if step is None or step.program not in _ON_ONE_HOST:
            return ""
        return step.option(*_ON_ONE_HOST[step.program]) or " ".join(step.positionals)

    # -- for people --------------------------------------------------------------------------------

    @cached_property
    def unknown(self) -> list[str]:
        """Names of the fields that only the run, or another file, knows."""
        is_named = self.start.script or self.launcher == "swift"  # that has its own
        missing = {
            "nodes": self.nodes_shown is None,
            "ranks_per_node": self.ranks_per_node is None,
            "worlds": self.worlds is None,
            "endpoint": self._is_unknown(self.host),
            "script": not is_named or self._is_unknown(posixpath.basename(self.start.script)),
            "options": self.is_opaque,
        }
        return [name for name, is_missing in missing.items() if is_missing]

    def _is_unknown(self, text: str) -> bool:
        known = (marks.FIRST_NODE, marks.FIRST_ADDRESS, marks.OWN_NAME, marks.OWN_ADDRESS)
        return any(mark.name not in known for mark in self.job.marks.all_of(text))

    @property
    def nodes_shown(self) -> int | None:
        """Nodes of the launch: those on which it starts, else the launcher's own number."""
        if self.is_by_ray:
            return self.number(self.arguments.get("trainer.nnodes", ""))
        if self.launcher == "determined":  # by resources.slots_per_trial and the agents that are there
            return None
        is_of_some = self.command.is_of_some and self.launcher != "ray"
        is_fewer = self.is_part or is_of_some or (self.left_out and self.backend == "c10d")
        if not self.is_away or is_fewer:
            return self.nnodes
        if self.most_nodes and self.nodes == self.allocated and not self.of_srun("-N", "--nodes"):
            return None
        return self.nodes if self.nodes is not None or (self.nnodes or 1) == 1 else self.nnodes

    @property
    def most_nodes(self) -> int:
        """4 of `--nodes=2-4`, where Slurm chooses the number of nodes; else 0."""
        least, _, most = last(self.asked, "nodes", "N")[0].partition("-")
        return int(most) if most.isascii() and most.isdecimal() and least != most else 0

    @property
    def ranks_shown(self) -> int | None:
        """Ranks on each node, also where every task of a node starts a launcher of one world."""
        each, ranks = self.per_node or 1, self.ranks_per_node
        is_one = self.launcher in TORCH and each > 1 and self.worlds == 1 and self.nnodes == self.instances
        return ranks * each if ranks and is_one else ranks

    def shown(self, text: str) -> str:
        return self.job.marks.shown(text)

    @property
    def summary(self) -> str:
        """For people: `srun torchrun: 4 nodes x 8 ranks, one world`."""
        by = {"batch": "on the batch node", "shell": ""}.get(self.started_by, self.started_by)
        words = [by if self.is_away else "", *self.wrapping, self.launcher]
        head = " ".join(word for word in words if word)
        nodes = "? nodes" if self.nodes_shown is None else plural(self.nodes_shown, "node")
        ranks = "? ranks" if self.ranks_shown is None else plural(self.ranks_shown, "rank")
        worlds = {None: "number of worlds unknown", 1: "one world"}.get(self.worlds, f"{self.worlds} worlds")
        where = "" if self.is_away or not by else f", {by} alone"
        if self.launcher == "ray":
            return f"{head} start: {nodes} of one cluster"
        return f"{head}: {nodes} x {ranks}, {worlds}{where}"

    def as_json(self) -> dict[str, object]:
        """One entry of `lint --json`'s "launches"."""
        return {
            "file": self.job.path,
            "line": self.line,
            "launcher": self.launcher,
            "started_by": self.started_by,
            "wrapping": list(self.wrapping),
            "nodes": self.nodes_shown,
            "ranks_per_node": self.ranks_shown,
            "worlds": self.worlds,
            "endpoint": printable(self.shown(self.endpoint)) or None,
            "module": printable(self.shown(self.module)) or None,
            "script": printable(self.shown(self.script)) or None,
            "unknown": self.unknown,
        }


# -- building ------------------------------------------------------------------------------------


MOST_LAUNCHES = 300
"""Launch lines of one file that are read; files of public trainers and HPC sites have at most 22."""


def launches_of(job: Job) -> list[Launch]:
    found = bounded(job, (made for command in job.commands if (made := launch_of(job, command))))
    real = [one for one in found if one.launcher != "python" or _is_training(one)]
    if any(one.is_away if one.launcher == "python" else one.launcher not in _SERVERS for one in real):
        # Plain scripts next to a launcher prepare data or evaluate.
        real = [one for one in real if one.launcher != "python" or one.is_away or _has_rank(one)]
    return real


def bounded(job: Job, every: Iterator[Launch]) -> list[Launch]:
    """The first launches of a file, which is read in part if it has more."""
    found = [*islice(every, MOST_LAUNCHES)]
    job.is_cut = job.is_cut or next(every, None) is not None
    return found


def _is_training(launch: Launch) -> bool:
    name = posixpath.basename(launch.start.script).lower()
    if launch.start.kind == "module":
        return not _NOT_TRAINING.match(name)
    return (
        bool(name)
        and (launch.is_away or not name.startswith(OTHER_SCRIPTS))
        and (name.endswith(".py") or launch.is_away or _has_rank(launch))
    )


def _has_rank(launch: Launch) -> bool:
    return not launch.env.keys().isdisjoint(RANK_VARIABLES)


def launch_of(
    job: Job, command: Command, replicas: int | None = None, by: str = "", tasks: int | None = 1
) -> Launch | None:
    """The launch of one command, which `by` runs `tasks` times in each pod; None if it starts no ranks."""
    start = command.start
    is_asked = not start.script and any(o.name in ("--help", "--version") for o in start.options)
    if not start.launcher or start.text is not None or is_asked:
        return None
    if posixpath.basename(start.script) == "deepy.py" and start.arguments:  # of GPT-NeoX
        script, *more = start.arguments
        options = ["its configuration"]
        start = replace(start, launcher="deepspeed", script=script, arguments=tuple(more), opaque=options)
    if start.launcher == "xtuner":
        env = {**command.env, **start.env}
        named = {"MASTER_ADDR": env.get("ADDR", "127.0.0.1"), "MASTER_PORT": env.get("PORT", "")}
        by_torchrun = not env.keys().isdisjoint(("NNODES", "NPROC_PER_NODE"))
        start = (
            replace(start, env={**start.env, **named}) if by_torchrun else replace(start, launcher="python")
        )
    steps = (*command.around, *start.steps)
    starters = [step for step in steps if step.role == "starter"]
    launch = Launch(job, command, start, steps, by, replicas, None, replicas=replicas)
    if by:
        launch.per_node = tasks
    if starters:
        launch.started_by = starters[0].program
        launch.nodes, launch.per_node = _placed(launch, starters[0])
    elif not by:
        launch.started_by = "batch" if job.directives else "shell"
        launch.nodes, launch.per_node = 1, 1
    return launch


def placed(job: Job, command: Command) -> tuple[int | None, int | None]:
    """(nodes, processes on each) of any program; (1, 1) without a starter in front of it."""
    steps = command.steps
    starter = next((step for step in steps if step.role == "starter"), None)
    launch = Launch(job, command, command.start, steps, starter.program if starter else "", None, None)
    return _placed(launch, starter) if starter else (1, 1)


def _looped(launch: Launch, text: str) -> tuple[bool, int | None]:
    """(whether a starter's words differ in each round of the loop around it, rounds)."""
    loop = launch.command.loop
    held = launch.job.marks.all_of(text)
    if loop is None or not any(mark.site == "loop" for mark in held):
        return False, None
    listed = launch.job.marks.all_of(loop)
    if any(mark.name in (marks.NODES, *COUNT_NAMES) for mark in listed):
        return True, launch.allocated or None
    return True, None if listed else len(loop.split()) or None


def _placed(launch: Launch, step: Step) -> tuple[int | None, int | None]:
    """(nodes, launchers on each) that a starter starts."""
    words = " ".join([*(o.written for o in step.options), *step.positionals])
    is_looped, rounds = _looped(launch, words)
    if step.program == "srun":
        nodes, each = _by_srun(launch, step)
        if is_looped and (nodes in (None, 1) or step.has("-w", "--nodelist")):
            return rounds, 1
        return nodes, each
    if _BY_MPI.fullmatch(step.program):
        return _by_mpi(launch, step)
    if step.program == "jsrun":
        return _by_jsrun(launch, step)
    if step.program == "flux":
        hosts = launch.number(step.option("-N", "--nodes") or "")
        total = launch.number(step.option("-n", "--ntasks") or "")
        return hosts, total // hosts if total and hosts else None
    if step.program == "gcloud" and (step.option("--worker") or "0") != "0":
        return None, 1
    if step.program in ON_HOST:
        return (rounds, 1) if is_looped else (1, 1)
    if step.program not in PROGRAMS:  # `ezpz_launch python t.py`
        return None, None
    if step.program == "pbsdsh":  # Torque's pbsdsh(1B), -u: once on each node
        each = 1 if step.has("-u") else tasks_per_node(launch.job.directives) or 1
        return launch.allocated or None, each
    if step.program in ("xargs", "kubectl", "parallel"):
        return (rounds, 1) if is_looped else (None, 1)
    if is_looped:
        return rounds, 1
    return _host_count(step.option("-w", "--hosts", "-z", "-H") or "") or launch.allocated or None, 1


def _host_count(text: str) -> int | None:
    """Hosts in `a,b`, `a b` or `n[1-4]`; None if it contains a mark or has another form."""
    if has_mark(text) or text.startswith(("^", "@")) or len(text) > 4000:
        return None
    count, inside = 0, False
    for part in text.replace("[", ",[").replace("]", ",]").replace(" ", ",").split(","):
        inside = part.startswith("[") or (inside and not part.startswith("]"))
        if inside:
            low, _, high = part.lstrip("[").partition("-")
            if not low.isdecimal() or (high and not high.isdecimal()):
                return None
            count += int(high) - int(low) + 1 if high else 1
        elif part and not part.startswith("]"):
            count += 1
        count -= part.startswith("[")  # the beginning of its name was counted
    return count or None


_TASKS = ("ntasks", "n", "ntasks-per-node", "tasks-per-node", "ntasks-per-gpu")


def _by_srun(launch: Launch, step: Step) -> tuple[int | None, int | None]:
    nodes_text = step.option("-N", "--nodes") or ""
    nodes = launch.number(nodes_text.partition("-")[0]) or _host_count(step.option("-w", "--nodelist") or "")
    nodes = nodes or (None if nodes_text else launch.allocated or None)
    each_text = step.option("--ntasks-per-node", "--tasks-per-node") or ""
    total_text = step.option("-n", "--ntasks") or ""
    if each_text:
        each, total = launch.number(each_text), launch.number(total_text)
        return nodes or (-(-total // each) if total and each and not nodes_text else None), each
    if total_text:
        if launch.is_node_count(total_text):
            return nodes, 1
        total = launch.number(total_text)
        if total is None:
            return nodes, None
        if nodes is None or (total < nodes and not nodes_text):
            return (total, 1) if nodes is not None or total == 1 else (None, None)
        return nodes, max(1, -(-total // nodes))
    each = tasks_per_node(launch.asked)
    if not each and (nodes_text or not any(d.name in _TASKS for d in launch.asked)):
        each = 1
    return nodes, each or None


def _by_mpi(launch: Launch, step: Step) -> tuple[int | None, int | None]:
    total_text = step.option(*MPI_OPTIONS["world_size"], "--ntasks") or ""
    each_text = step.option(*MPI_OPTIONS["nproc"], "-a") or ""
    mapped = step.option("--map-by", "-map-by") or ""
    if match := re.match(r"ppr:([^:]+):node", mapped):
        each_text = match[1]
    hosts = step.option(*MPI_OPTIONS["hosts"]) or ""
    each, total = launch.number(each_text), launch.number(total_text)
    nodes = _host_count(hosts) if hosts else launch.allocated or None
    if (listed := launch.job.files.get(step.option(*MPI_OPTIONS["hostfile"]) or "")) and not nodes:
        nodes = len(hosts_of(launch, listed)) or None
    in_turn = step.has("-bynode", "--bynode") or mapped == "node"
    is_pernode = step.has("-pernode", "--pernode") or (in_turn and launch.launcher in NODE_LAUNCHERS)
    if each is None and step.has("-pernode", "--pernode"):
        each = 1
    if launch.is_node_count(total_text):
        return nodes, 1 if each in (None, 1) else each
    if total is not None and each:
        return -(-total // each), each
    if total is not None and nodes:
        return (total, 1) if total < nodes else (nodes, -(-total // nodes))
    if total is not None and is_pernode:
        return total, 1
    if not total_text and each:
        return nodes, each
    if total is not None:
        return None, None
    return nodes, tasks_per_node(launch.job.directives) or None


def hosts_of(launch: Launch, text: str) -> list[int]:
    """The slots of each host of a host file, 0 without a number; [] for an unknown number of hosts."""
    found = list[int]()
    for host, slots in re.findall(r"(?m)^[ \t]*([^#\s]{1,255})(?:[ \t]{1,40}slots=(\d{1,4})\b)?", text):
        mark = launch.job.marks.of(host)
        if mark and (mark.site == "loop" or (mark.name == marks.NODES and not launch.allocated)):
            return []
        found += [int(slots or 0)] * (launch.allocated if mark and mark.name == marks.NODES else 1)
    return found


def _by_jsrun(launch: Launch, step: Step) -> tuple[int | None, int | None]:
    """IBM's jsrun: -n resource sets of -a tasks, -r sets on each host; -p is the number of tasks."""
    sets_text = step.option("-n", "--nrs") or ""
    per_host = launch.number(step.option("-r", "--rs_per_host") or "")
    tasks = launch.number(step.option("-a", "--tasks_per_rs") or "1")
    if tasks is None or step.has("-p", "--np"):
        return launch.allocated or None, None
    if launch.is_node_count(sets_text) and per_host in (None, 1):
        return launch.allocated or None, tasks
    sets = launch.number(sets_text)
    if not sets or not (per_host or launch.allocated):
        return launch.allocated or None, per_host and per_host * tasks
    hosts = -(-sets // per_host) if per_host else launch.allocated
    return hosts, -(-sets // hosts) * tasks


# -- what could not be read ------------------------------------------------------------------------


@dataclass(frozen=True)
class NotRead:
    """A file or a line that was not understood."""

    path: str
    line: int
    reason: str


TOO_LARGE = "too large or too deeply nested: read in part"


def not_read(job: Job, found: Sequence[Launch]) -> list[NotRead]:
    """Parts of the file that were not read; without a launch line the reason."""
    left = [NotRead(job.path, 1, TOO_LARGE)] if job.is_cut else []
    spans = dict.fromkeys(job.ruled_out)
    out = [at for at, end in spans if not any(at <= one.line <= end for one in found)]
    for at in out[:3]:
        more = f", and {plural(len(out) - 3, 'later one')}" if [at] == out[2:3] and out[3:] else ""
        left.append(NotRead(job.path, at, f"values in this file rule this branch out{more}"))
    if found:
        return left
    for command in job.commands:
        texts = command.texts
        program = posixpath.basename(texts[0]) if texts else ""
        if texts and is_mark(texts[0]) and len(texts) > 1:
            name = job.marks.shown(texts[0])
            reason = f"{name} is the command, and this file does not set it"
            return [*left, NotRead(job.path, command.line, reason)]
        rest = command.start.rest or (command.start.script,)
        box = next((s for s in command.start.steps[-1:] if s.subcommand == "run"), None)
        if box and box.program in DOCKER and rest[0][:1] in ("", "-") and not box.has("--entrypoint"):
            image = job.marks.shown("".join(box.positionals))
            return [*left, NotRead(job.path, command.line, f"the image {image} chooses the program")]
        target = next((w for w in (*rest, *texts) if w.endswith((".sh", ".bash", ".slurm", ".sbatch"))), "")
        is_started = (
            command.start.steps or program.endswith((".sh", ".bash")) or program in ("sbatch", "qsub", "bsub")
        )
        if target and is_started and program not in ("chmod", "cat", "cp", "rm", "echo", "source", "."):
            shown = job.marks.shown(target)
            return [*left, NotRead(job.path, command.line, f"what {shown} starts is in another file")]
    return [*left, NotRead(job.path, 1, "no launch line recognised")]
