"""How nodes were not reached: one rule for each of ssh's ways to fail."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from statistics import median_low

from ringup.checks import paths
from ringup.checks.loss import lossy_networks
from ringup.facts import Cluster, Node, ReachFailure, starved
from ringup.rules import Finding, Fix, Skipped, check
from ringup.units import printable

SLOW_ANSWER_S = 5.0
"""The whole answer of a healthy node takes one to three seconds, on busy machines too."""


_PLACE = re.compile("TARGET|HOST")


def target(node: Node) -> str:
    """The word to give to ssh for this node, quoted."""
    name = node.host.name or node.name
    return shlex.quote(f"{node.host.user}@{name}" if node.host.user else name)


def for_node(command: str, node: Node) -> str:
    """A command with TARGET and HOST replaced, both at once: a node may be called GPUHOST7."""
    words = {"TARGET": target(node), "HOST": shlex.quote(node.host.name or node.name)}
    return _PLACE.sub(lambda match: words[match[0]], command)


def failed(cluster: Cluster, kind: ReachFailure, wanted: str, text: str, *commands: str) -> Iterator[Finding]:
    """A finding for each node that was not reached in this way; `HOST` in commands is the node."""
    for node in cluster.nodes:
        if node.unreached is not None and node.unreached.kind == kind:
            yield Finding(
                node.name,
                found=printable(node.unreached.words, 600),
                wanted=wanted,
                node=node.name,
                fix=Fix(
                    text,
                    commands=tuple(for_node(c, node) for c in commands),
                ),
            )


@check("ssh-host-key-unknown", reads=())
def ssh_host_key_unknown(cluster: Cluster) -> Iterator[Finding]:
    """
    ssh does not know the node's host key yet.

    Why: without a terminal ssh refuses rather than asks; a launcher that accepts any key would
    talk to any machine.

    Fix: log in once by hand and compare the fingerprint, or take the key from a trusted source
    into `~/.ssh/known_hosts`.

    In logs: `Host key verification failed.`
    """
    yield from failed(
        cluster,
        "ssh-host-key-unknown",
        "the node's key in known_hosts",
        "log in once by hand, compare the fingerprint and accept it",
        "ssh TARGET true",
    )


@check("ssh-host-key-changed", reads=())
def ssh_host_key_changed(cluster: Cluster) -> Iterator[Finding]:
    """
    The node shows another host key than the one known for it.

    Why: it was installed anew, another machine has its address, or somebody stands in between.

    Fix: ask who runs the node; if it was installed anew, remove the old key and accept the new one.

    In logs: `REMOTE HOST IDENTIFICATION HAS CHANGED`, `Host key verification failed.`
    """
    yield from failed(
        cluster,
        "ssh-host-key-changed",
        "the key that known_hosts has",
        "make sure it is the right machine, then replace the key",
        "ssh-keygen -R HOST",
        "ssh TARGET true",
    )


@check("ssh-key-refused", reads=())
def ssh_key_refused(cluster: Cluster) -> Iterator[Finding]:
    """
    The node does not accept any of our keys.

    Why: nothing can be asked or started there without a password.

    Fix: put the public key into the user's `authorized_keys` on the node; check user name and agent.

    In logs: `Permission denied (publickey).`
    """
    yield from failed(
        cluster,
        "ssh-key-refused",
        "a login without a password",
        "copy the public key to the node; check the user name and that the agent runs (`ssh-add -l`)",
        "ssh-copy-id TARGET",
        "ssh -v -o BatchMode=yes TARGET true",
    )


@check("ssh-connection-refused", reads=())
def ssh_connection_refused(cluster: Cluster) -> Iterator[Finding]:
    """
    Nothing listens on the node's ssh port.

    Why: sshd is not running there, listens on another port, or a firewall refuses.

    Fix: start sshd on the node, or give its port in `~/.ssh/config`.

    In logs: `ssh: connect to host node1 port 22: Connection refused`.
    """
    yield from failed(
        cluster,
        "ssh-connection-refused",
        "sshd answers",
        "start sshd on the node (`systemctl start ssh`), or name its port in ~/.ssh/config",
        "ssh -v TARGET true",
    )


@check("ssh-no-route", reads=())
def ssh_no_route(cluster: Cluster) -> Iterator[Finding]:
    """
    There is no way to the node's address.

    Why: the node is off, its network interface is down, or a route is missing.

    Fix: is it powered and linked? Compare the address with the one it should have.

    In logs: `ssh: connect to host node1 port 22: No route to host`.
    """
    yield from failed(
        cluster,
        "ssh-no-route",
        "the node's address answers",
        "check that the node is on, its link is up and the address is right",
        "ping -c 3 HOST",
        "ip route get $(getent ahosts HOST | awk 'NR==1{print $1}')",
    )


@check("ssh-timeout", reads=())
def ssh_timeout(cluster: Cluster) -> Iterator[Finding]:
    """
    The node does not answer on its ssh port at all.

    Why: it is off, has another address, or a firewall drops the packets.  ssh itself would wait two
    minutes.

    Fix: is it powered? Is the address right? Does a firewall on the way drop port 22?

    In logs: nothing for two minutes, then `Connection timed out`.
    """
    yield from failed(
        cluster,
        "ssh-timeout",
        "an answer within the connect deadline",
        "check that the node is on and the address right; then firewalls on the way",
        "ping -c 3 HOST",
        "ssh -v -o ConnectTimeout=5 TARGET true",
    )


@check("ssh-name-unknown", reads=())
def ssh_name_unknown(cluster: Cluster) -> Iterator[Finding]:
    """
    The name of a node is not known here.

    Why: neither the hosts file, DNS nor ssh's configuration has it; most often a spelling mistake.

    Fix: correct the name, use the address, or add a `Host` entry with `HostName` to `~/.ssh/config`.

    In logs: `ssh: Could not resolve hostname node1: Name or service not known`.
    """
    yield from failed(
        cluster,
        "ssh-name-unknown",
        "a name that resolves here",
        "correct the name or use the address",
        "getent ahosts HOST",
    )


@check("ssh-key-exchange-hangs", reads=())
def ssh_key_exchange_hangs(cluster: Cluster) -> Iterator[Finding]:
    """
    The node accepts the connection, and then ssh's key exchange never ends.

    Why: small packets pass and full-size ones vanish: an MTU black hole on the way to the node.
    The training job would hang in the same way.  Where not even sshd's banner came, which is short, the
    node or its sshd hangs or is overloaded.

    Fix: the same MTU along the whole path, ICMP "fragmentation needed" let through; until then a
    smaller MTU here or on the node.  Without a banner: the node's console.

    In logs: `expecting SSH2_MSG_KEX_ECDH_REPLY` as the last line of `ssh -v`.
    """
    found = failed(
        cluster,
        "ssh-key-exchange-hangs",
        "full-size packets arrive",
        "most likely an MTU black hole: compare the MTUs along the path; a smaller one proves it",
        "ping -c 3 -M do -s 1472 HOST",
        "ssh -v TARGET true",
    )
    for finding in found:
        yield without_banner(finding) if _NO_BANNER.search(finding.found) else finding


_NO_BANNER = re.compile(r"no banner of sshd|banner exchange")


def without_banner(finding: Finding) -> Finding:
    """What is said where the first, short, line of sshd did not come: nothing about long packets."""
    return replace(
        finding,
        wanted="sshd's banner, its first line",
        why="the node's kernel takes the connection, its sshd says nothing: it hangs, or is starved",
        fix=Fix(
            "look at the node's load and its sshd, on the console or through its management board",
            commands=finding.fix.commands[1:] if finding.fix else (),
        ),
    )


@check("ssh-long-answer-lost", reads=())
def ssh_long_answer_lost(cluster: Cluster) -> Iterator[Finding]:
    """
    The node can be logged in to and answers briefly, but a long answer never arrives.

    Why: full-size packets from the node vanish: an MTU black hole on the way back.  The training
    job would hang in the same way.

    Fix: the same MTU along the whole path, ICMP "fragmentation needed" let through; until then a
    smaller MTU on the node.
    """
    yield from failed(
        cluster,
        "ssh-long-answer-lost",
        "full-size packets arrive",
        "most likely an MTU black hole: compare the MTUs along the path; a smaller one on the node proves it",
        "ping -c 3 -M do -s 1472 HOST",
        "ssh TARGET ip link",
    )


@check("ssh-failed", reads=())
def ssh_failed(cluster: Cluster) -> Iterator[Finding]:
    """
    ssh to the node failed for a reason that has no name here.

    Why: nothing can be asked or started there.

    Fix: see ssh's own words; `ssh -v` tells more.
    """
    yield from failed(
        cluster, "ssh-failed", "a login without a password", "see what ssh -v says", "ssh -v TARGET true"
    )


@check("srun-failed", reads=())
def srun_failed(cluster: Cluster) -> Iterator[Finding]:
    """
    Slurm could not start a step of one task on a node of the allocation, or the step was lost.

    Why: inside an allocation `srun` is the way to the nodes; a job has no other.

    Fix: `srun --overlap -N1 -n1 -w NODE hostname`; when the node is gone, a new allocation; without
    a working srun, `--ssh-config ~/.ssh/config` reaches the nodes by ssh.

    In logs: `srun: error: Unable to create step for job`
    """
    yield from failed(
        cluster,
        "srun-failed",
        "a step of one task on the node",
        "see what srun says; when the node is gone, ask for a new allocation",
        "srun --overlap -N1 -n1 -w HOST hostname",
        "sinfo -n HOST -o '%n %T %E'",
    )


@check("no-answer", reads=())
def no_answer(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    The node was reached but did not answer what it was asked within the deadline.

    Why: an overloaded or hanging node (a dead network file system, a start-up file that waits, heavy
    packet loss) would hold up every rank.

    Fix: log in by hand and see what hangs; `--timeout` allows more time.
    """
    for node in cluster.nodes:
        if node.unreached is not None and node.unreached.kind == "no-cpu-time":
            yield Skipped("", node.name, node.unreached.words)
    yield from failed(
        cluster,
        "no-answer",
        "an answer within the deadline",
        "log in by hand and see what hangs: load, a dead mount, a start-up file of the shell",
        "time ssh TARGET true",
        "ssh TARGET uptime",
    )


@check(
    "answer-slow",
    reads=("answer_s",),
    uses=("interfaces", "gpu_driver", "looks", "cpu_waits", "load", "cpu_count", *paths.USES),
    severity="warning",
)
def answer_slow(cluster: Cluster) -> Iterator[Finding]:
    """
    A node takes much longer to answer than the others.

    Why: load, a slow start-up file or name server, or packet loss on the way to it; the slowest
    node sets the pace of all.

    Fix: `time ssh NODE true`; load (`uptime`), the shell's start-up files, sshd's `UseDNS`, packet loss
    (`ping -c 100 -i 0.2`).
    """
    lossy = {node for lost in lossy_networks(cluster) if lost.severe for node, _, _ in lost.ways}
    for node in cluster.nodes:
        if node.name in lossy:
            continue  # Lost packets are named as such; that they delay ssh too is no second fault.
        if "gpu_driver" not in node.unknown and node.gpu_driver.silent_s > node.answer_s / 2:
            continue  # `nvidia-smi-hangs` names what it waited for.
        if "looks" not in node.unknown and sum(x.took_s for x in node.looks) > node.answer_s / 2:
            continue  # `nfs-mount-slow` does.
        others = [n.answer_s for n in cluster.nodes if n.name != node.name]
        usual = median_low(others) if others else 0.0
        if node.answer_s > max(SLOW_ANSWER_S, 3 * usual):
            waited_s = starved.longest(node.cpu_waits)
            is_busy = starved.excuses(waited_s, node.answer_s)
            because = f"; {starved.words(node.name, waited_s, node.load, node.cpu_count)}" if is_busy else ""
            yield Finding(
                node.name,
                found=f"answered after {node.answer_s:.1f} s{because}",
                wanted=f"about {usual:.1f} s, as the others" if others else f"under {SLOW_ANSWER_S:g} s",
                node=node.name,
                fix=Fix(
                    "look at load, start-up files, name look-ups and packet loss",
                    commands=(
                        f"time ssh {target(node)} true",
                        f"ssh {target(node)} uptime",
                        f"ping -c 50 -i 0.2 {shlex.quote(node.host.name or node.name)}",
                    ),
                ),
            )


@check("ssh-banner-or-rc-output", reads=("shell_noise",), severity="note")
def shell_startup_prints(cluster: Cluster) -> Iterator[Finding]:
    """
    The shell's start-up files on a node print something even without a terminal.

    Why: programs that read a remote command's output (scp, launchers, parsers) get it mixed in.

    Fix: in `~/.bashrc` return early when not interactive: `case $- in *i*) ;; *) return;; esac`.
    """
    for node in cluster.nodes:
        if node.shell_noise.strip():
            yield Finding(
                node.name,
                found=printable(node.shell_noise.strip(), 200),
                wanted="nothing before the command's own output",
                node=node.name,
                fix=Fix(
                    "let start-up files print only in interactive shells",
                    commands=(f"ssh {target(node)} true",),
                ),
            )
