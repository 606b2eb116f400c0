"""The address, port and id at which the ranks of a launch meet."""

from __future__ import annotations

import re

from ringup.launchfiles import marks
from ringup.launchfiles.expansion import PER_TASK
from ringup.launchfiles.model import NODE_LAUNCHERS, TORCH, Launch
from ringup.lint.job_file import JobFile
from ringup.lint.rule import SHELL, Found, fault, lines
from ringup.rules import Severity
from ringup.units import printable

_LITERAL_PORT = re.compile(r"^\d{2,6}$")
LAST_PORT = 65535
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


@fault("head-address-guessed", SHELL, severity="warning")
def head_address_guessed(job: JobFile) -> Found:
    """
    The head's address is taken from a command that gives the first address, whichever network it is on.

    Why: `hostname -i` is often 127.0.1.1, `hostname -I` begins with the management network or docker, and
    SLURM_LAUNCH_NODE_IPADDR is where srun ran, a login node perhaps.

    Fix: use an address on the network that all nodes share; `ringup env` names it.
    """
    pattern = re.compile(r"hostname\s+(?:-[iI]\b|--ip-address|--all-ip)|SLURM_LAUNCH_NODE_IPADDR")
    for number, line in enumerate(job.lines, 1):
        match = pattern.search(line.split("#")[0])
        is_ip = bool(job.launches) and "ip=" in line.lower()
        if match and (is_ip or re.search(r"(?i)addr|master|head|endpoint|main_process_ip", line)):
            yield number, f"`{match[0]}`", "an address that every node can reach"


@fault("rendezvous-without-id", SHELL, severity="note", each="launches")
def rendezvous_without_id(job: JobFile, launch: Launch) -> Found:
    """
    A c10d rendezvous of several nodes has no id.

    Why: all runs without one are called "none"; what an earlier run left at the
    endpoint is joined without a message.

    Fix: `--rdzv-id` with the job's id, the same on every node.
    """
    is_c10d = launch.launcher == "torchrun" and launch.backend == "c10d" and launch.nnodes != 1
    if is_c10d and not launch.setting("rdzv-id") and not launch.is_opaque:
        yield launch.line, "no --rdzv-id", "an id for this run"


_NEW_ON_EACH = re.compile(r"\$\((?:uuidgen|hostname|openssl|mktemp|cat /proc|date .*%N|shuf).*|S?RANDOM|\$+")
_BY_RANK = re.compile(r"(?i)--rdzv[-_]id=[\"']?\$\{?(?:node_?rank|machine_?rank|slurm_nodeid|slurm_procid)\b")


@fault("rendezvous-ids-differ", SHELL, each="launches")
def rendezvous_id_of_each_node(job: JobFile, launch: Launch) -> Found:
    """An id that each node, or each round of the loop, generates."""
    held = job.job.marks.all_of(launch.setting("rdzv-id"))
    own = {marks.OWN_NAME, marks.OWN_ADDRESS, *PER_TASK}
    sites = ("task", "loop") if launch.is_one_a_round else ("task",)
    new = [m for m in held if m.site in sites and (_NEW_ON_EACH.fullmatch(m.name) or m.name in own)]
    by_rank = next((w for w in launch.command.words if _BY_RANK.match(w.raw)), None)
    is_one = launch.nodes == 1 or launch.nnodes == 1 or not launch.is_away or launch.replicas == 1
    if by_rank and launch.nnodes != 1 and launch.launcher in TORCH:
        yield launch.line, f"{printable(by_rank.raw, 80)}: another on each node", "one id for all nodes"
    elif new and not is_one and launch.launcher in TORCH:
        found = f"--rdzv-id={launch.shown(launch.setting('rdzv-id'))}: another on each node"
        yield launch.line, printable(found, 120), "one id for all nodes: the job's, or one made before"


@fault("meeting-point-differs", SHELL, each="launches")
def port_of_each_node(job: JobFile, launch: Launch) -> Found:
    """A port that each node draws."""
    new = [m for m in job.job.marks.all_of(launch.port) if m.site == "task" and _DRAWN.search(m.name)]
    is_one = launch.nodes == 1 or launch.nnodes == 1 or not launch.is_away or launch.replicas == 1
    if new and not is_one and launch.launcher in NODE_LAUNCHERS:
        found = f"port {launch.shown(launch.port)}: another on each node"
        yield launch.line, printable(found, 120), "one port, drawn before the nodes are started"


_DRAWN = re.compile(r"\bS?RANDOM\b|\b(?:shuf|uuidgen)\b|\bfree_?port|\bss -|\bsocket\b")
"""Another value on each machine."""


@fault("rendezvous-host-unsure", SHELL, severity="warning", each="launches")
def rendezvous_host_unsure(job: JobFile, launch: Launch) -> Found:
    """
    With the c10d rendezvous, torch guesses from the host name which node owns the endpoint's address.

    Why: torch compares the endpoint with the node's own host name, then with the addresses of that name; an
    address of another network card, or 127.0.1.1 in the hosts file, and no node opens the store: every node
    waits (pytorch issue 73656).

    Fix: use the first node's name as endpoint; static rendezvous (`--node-rank`, `--master-addr`); or
    `--rdzv-conf is_host=1` on the head and `is_host=0` elsewhere, with `--local-addr`.
    """
    is_c10d = launch.launcher in ("torchrun", "accelerate") and launch.backend == "c10d"
    is_several = launch.nnodes != 1 and bool(launch.nnodes_text or launch.option("host", "hostfile"))
    if not is_c10d or "is_host" in launch.option("rdzv-conf") or not is_several:
        return
    held = {mark.name for mark in job.job.marks.all_of(launch.host)}
    if _ADDRESS.fullmatch(launch.host) or held & {marks.FIRST_ADDRESS, marks.OWN_ADDRESS}:
        if launch.host_is_own:
            return
        found = f"nothing says which node is {launch.shown(launch.endpoint)}"
        wanted = "the first node's name, is_host in --rdzv-conf, or static rendezvous"
        by = "`ringup run` uses static rendezvous, or gives is_host with c10d"
        yield job.finding(launch.line, found, wanted, worked_around_by=by)


_DRAWN_FROM = re.compile(
    r"\$\(\( ?(?:(\d{1,6}) ?\+ ?)?\(? ?\$?\{?(?:RANDOM|SLURM_JOB_?ID|PBS_JOBID)\}? ?% ?(\d{1,6}) ?\)?"
    r"(?: ?\+ ?(\d{1,6}))? ?\)\)"
)


def _range_of(text: str) -> tuple[int, int]:
    """
    The least and the greatest value of a port that is computed from a number of the job; (0, 0) if unknown.

    >>> _range_of("$((30000 + SLURM_JOB_ID % 50000))"), _range_of("29500")
    ((30000, 79999), (0, 0))
    """
    match = _DRAWN_FROM.fullmatch(text)
    low = int((match[1] or match[3] or 0) if match else 0)
    return (low, low + int(match[2]) - 1) if match else (0, 0)


@fault("port-privileged", SHELL, each="launches")
def port_privileged(job: JobFile, launch: Launch) -> Found:
    port = launch.port
    computed = " ".join(mark.name for mark in job.job.marks.all_of(port))
    low, high = _range_of(computed)
    if match := re.fullmatch(r"\$\(\( ?(\d{1,5}) ?\+ ?\$?\{?(SLURM_JOB_?ID)\}? ?\)\)", computed):
        found = f"the port is above {LAST_PORT} for job ids above {LAST_PORT - int(match[1])}"
        wanted = f"$(({max(1024, min(int(match[1]), 50_000))} + {match[2]} % 10000))"
        yield job.finding(launch.line, found, wanted, severity="warning")
    elif high and (low < 1024 or high > LAST_PORT):
        severity: Severity = "error" if high < 1024 or low > LAST_PORT else "warning"
        found = f"the port is from {low} to {high}"
        yield job.finding(launch.line, found, "a port from 1024 to 65535", severity=severity)
    elif _LITERAL_PORT.match(port) and int(port) > LAST_PORT:
        yield launch.line, f"port {port}: there is none above {LAST_PORT}", "a port from 1024 to 65535"
    elif _LITERAL_PORT.match(port) and 0 < int(port) < 1024 and launch.replicas is None:
        yield launch.line, f"port {port}", "a port above 1023"


@fault("rendezvous-address-wrong", SHELL, each="launches")
def rendezvous_address_wrong(job: JobFile, launch: Launch) -> Found:
    """
    The address at which the ranks meet cannot be one.

    Why: `--master-addr` and MASTER_ADDR take a host alone, the port has its own option; an endpoint is
    HOST:PORT without `http://` (torch 2.13 `elastic/rendezvous/utils.py` refuses it); a number of an IPv4
    address is at most 255.

    Fix: `--master-addr=10.0.0.1 --master-port=29500`, `--rdzv-endpoint=10.0.0.1:29500`.
    """
    host = launch.setting("master-addr") or launch.option("main-process-ip")
    host = host or launch.env.get("MASTER_ADDR", "").strip("\"'")
    octets = re.fullmatch(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})\.(\d{1,4})", launch.host)
    if re.fullmatch(r"[\w.-]{1,255}:\d{1,5}", host):
        yield launch.line, f"the address is {printable(host, 80)}, with a port", host.partition(":")[0]
    elif (
        launch.launcher in TORCH and "://" in launch.option("rdzv-endpoint") and "etcd" not in launch.backend
    ):
        yield launch.line, f"the endpoint is {printable(launch.option('rdzv-endpoint'), 80)}", "HOST:PORT"
    elif octets and max(map(int, octets.groups())) > 255:
        yield launch.line, f"no host can have the address {launch.host}", "numbers up to 255"


@fault("port-in-file", SHELL, severity="note")
def port_in_file(job: JobFile) -> Found:
    """
    The port of the rendezvous is written in the file.

    Why: a leftover of an earlier run, or another job on the node, may hold it: with c10d the job hangs
    without a message, otherwise it ends with EADDRINUSE.

    Fix: use a port that is free at that moment (`ringup run` finds one), or derive one from the job's id.
    """
    found: list[tuple[int, str]] = []
    for launch in job.launches:
        endpoint = launch.option("rdzv-endpoint").rpartition(":")
        values = [
            launch.option("master-port", "main-process-port"),
            launch.env.get("MASTER_PORT", ""),
            endpoint[2] if endpoint[1] else "",
            str(launch.command.variables.get("MASTER_PORT", "")),
        ]
        port = next((v for v in values if _LITERAL_PORT.match(v)), "")
        if launch.replicas is not None:
            continue
        if port and port != "0":
            found.append((launch.line, port))
        elif launch.launcher == "colossalai" and not launch.option("master-port"):
            found.append((launch.line, "29500 by default"))
    if found:
        yield found[0][0], f"port {found[0][1]}{lines([n for n, _ in found])}", "a port known to be free"
