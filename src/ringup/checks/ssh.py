"""Nodes that could not be reached: one rule for each way in which ssh fails."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ringup.checks.network_setup import lossy_networks
from ringup.checks.software import usual_elsewhere
from ringup.model import Cluster, Node, cpu_starvation
from ringup.rules import Finding, Skipped, at, check, ssh_target
from ringup.units import printable

SLOW_ANSWER_S = 5.0
"""Seconds; a healthy node, even a busy one, sends its whole answer in one to three."""
TRY_SLOW = ("time ssh {target} true", "ssh {target} uptime", "ping -c 50 -i 0.2 {host}")
_KEY_NAME = re.compile(r"Host key for (\S{1,300}) has changed")
_KEY_FILE = re.compile(r"Offending \S{1,40} key in ([^:\n]{1,400}):\d")
"""sshconnect.c of OpenSSH: the name under which it keeps the key (an address, [name]:port), and the file."""
_NO_BANNER = re.compile(r"no banner of sshd|banner exchange")


def for_node(command: str, node: Node) -> str:
    return command.format(target=ssh_target(node), host=shlex.quote(node.host.name or node.name))


PING = "ping -c 3 {host}"
FULL_SIZE = ("full-size packets arrive", "ping -c 3 -M do -s 1472 {host}")
UNREACHED = {
    "ssh-host-key-unknown": ("the node's key in known_hosts", "ssh {target} true"),
    "ssh-host-key-changed": ("the key in known_hosts", "ssh-keygen -R {host}", "ssh {target} true"),
    "ssh-key-refused": (
        "a login without a password",
        "ssh-copy-id {target}",
        "ssh -v -o BatchMode=yes {target} true",
    ),
    "ssh-connection-refused": ("sshd answers", "ssh -v {target} true"),
    "ssh-no-route": (
        "the node's address answers",
        PING,
        "ip route get $(getent ahosts {host} | awk 'NR==1{{print $1}}')",
    ),
    "ssh-timeout": (
        "an answer within the connect deadline",
        PING,
        "ssh -v -o ConnectTimeout=5 {target} true",
    ),
    "ssh-name-unknown": ("a name that resolves here", "getent ahosts {host}"),
    "ssh-key-exchange-hangs": (*FULL_SIZE, "ssh -v {target} true"),
    "ssh-long-answer-lost": (*FULL_SIZE, "ssh {target} ip link"),
    "ssh-failed": ("a login without a password", "ssh -v {target} true"),
    "srun-failed": (
        "a step of one task on the node",
        "srun --overlap -N1 -n1 -w {host} hostname",
        "sinfo -n {host} -o '%n %T %E'",
    ),
    "no-answer": ("an answer within the deadline", "time ssh {target} true", "ssh {target} uptime"),
}
"""Way to fail -> the expected state, and a command to try from here; the texts are in `rules.problems`."""


def unreached(node: Node, kind: str) -> Iterator[Finding | Skipped]:
    failure, (wanted, *commands) = node.unreached, UNREACHED[kind]
    if failure and failure.kind == "no-cpu-time" and kind == "no-answer":
        yield Skipped("", node.name, failure.words)
    elif failure and failure.kind == kind:
        lines, fix, why = [for_node(c, node) for c in commands], "", ""
        if kind == "ssh-key-exchange-hangs" and _NO_BANNER.search(failure.words):
            # sshd's first, short line did not come: nothing follows about long packets.
            wanted, lines = "sshd's banner, its first line", lines[1:]
            why = "the node accepts the connection but sshd does not respond: it hangs or gets no CPU time"
            fix = "check the node's load and sshd, on the console or through its BMC"
        if kind == "ssh-host-key-changed" and (name := _KEY_NAME.search(failure.words)):
            file = _KEY_FILE.search(failure.words)
            named = f"-f {shlex.quote(file[1])} " if file else ""
            lines[0] = f"ssh-keygen {named}-R {shlex.quote(name[1])}"
        if kind == "ssh-name-unknown" and "Temporary failure" in failure.words:  # EAI_AGAIN
            why = "the hosts file does not have the name, and this machine's name server does not answer"
            fix = "check the spelling, then the name server (`/etc/resolv.conf`); or use the node's address"
        words = printable(failure.words, 600)
        yield replace(at(node).finding(found=words, wanted=wanted, fix=fix, commands=lines), why=why)


for _kind in UNREACHED:
    check(_kind)(partial(unreached, kind=_kind))


@check("answer-slow", reads=("answer_s",), severity="warning")
def answer_slow(cluster: Cluster) -> Iterator[Finding]:
    """
    A node takes much longer to answer than the others.

    Why: load, a slow start-up file or name server, or packet loss on the way to it; the slowest
    node sets the pace of all.
    Fix: try `time ssh NODE true`; check load, the shell's start-up files, sshd's `UseDNS`, `ping -c 100`.
    """
    lossy = {node for lost in lossy_networks(cluster) if lost.severe for node, _, _ in lost.ways}
    elsewhere = usual_elsewhere([n.answer_s for n in cluster.nodes])
    for node, usual in zip(cluster.nodes, elsewhere, strict=True):
        if node.name in lossy:
            # Another rule reports lost packets; the ssh delay that they cause is not a second fault.
            continue
        # `nvidia-smi-hangs` and `nfs-mount-slow` name the cause of the delay.
        named_s = node.gpu_driver.silent_s + sum(look.took_s for look in node.looks)
        if node.answer_s - named_s > max(SLOW_ANSWER_S, 3 * usual):
            waited_s = max(node.cpu_waits.values(), default=0.0)
            is_busy = cpu_starvation.excuses(waited_s, node.answer_s)
            because = cpu_starvation.words(node.name, waited_s, node.load, node.cpu_count)
            has_others, limit = len(cluster.nodes) > 1, f"under {SLOW_ANSWER_S:g} s"
            yield at(node).finding(
                found=f"answered after {node.answer_s:.1f} s" + (f"; {because}" if is_busy else ""),
                wanted=f"about {usual:.1f} s, as the others" if has_others else limit,
                commands=[for_node(c, node) for c in TRY_SLOW],
            )


@check("ssh-banner-or-rc-output", reads=("shell_noise",), severity="note")
def shell_startup_prints(node: Node) -> Iterator[Finding]:
    """
    The shell's start-up files on a node print something even without a terminal.

    Why: programs that read a remote command's output (scp, launchers, parsers) get it mixed in.
    Fix: in `~/.bashrc` return early when not interactive: `case $- in *i*) ;; *) return;; esac`.
    """
    if node.shell_noise.strip():
        yield at(node).finding(
            found=printable(node.shell_noise.strip(), 200),
            wanted="nothing before the command's own output",
            run="true",
        )
