"""What an ordinary user could not see on the nodes, and what root would run to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ringup.facts import Cluster, Node
from ringup.rules import Skipped

DENIED = ("ermission denied", "not permitted", "needs root", "dmesg_restrict")
KERNEL_LOG = "sudo dmesg -T | grep -Ei 'nvrm|sxid|aer|killed process|mlx5'"


@dataclass(frozen=True)
class Sharper:
    """A rule that is judged for an ordinary user, and would know more as root."""

    rule: str
    reason: str
    as_root: str
    matters: Callable[[Node], bool]


def hides_listener(node: Node) -> bool:
    return "listeners" not in node.unknown and any(li.process is None for li in node.listeners)


def has_gpus(node: Node) -> bool:
    return "gpu_count" not in node.unknown and node.gpu_count > 0


def always(node: Node) -> bool:
    return True


SHARPER = (
    Sharper(
        "port-in-use",
        "processes of other users that hold ports are not seen",
        "sudo ss -ltnp",
        hides_listener,
    ),
    Sharper(
        "orphan-of-earlier-run",
        "processes and /dev/shm files that other users' runs left are not judged",
        "sudo ps axo pid,ppid,user,etime,args | grep -E 'torchrun|torch.distributed|deepspeed'",
        always,
    ),
    Sharper(
        "oom-killer-ran", "which processes were killed stands in the kernel log alone", KERNEL_LOG, always
    ),
    Sharper(
        "stuck-processes",
        "what a blocked process waits for in the kernel is not shown",
        "sudo cat /proc/PID/stack",
        lambda node: "stuck" not in node.unknown and bool(node.stuck.blocked),
    ),
    Sharper(
        "firewall-drops-high-ports",
        "the firewall's rules explain what the pair tests see; they cannot be read",
        "sudo nft list ruleset",
        always,
    ),
    Sharper(
        "acs-enabled",
        "PCI access control stands in a part of the configuration space that is hidden",
        "sudo lspci -vvv | grep -i acsctl",
        has_gpus,
    ),
)


def would_add(cluster: Cluster, skipped: Iterable[Skipped]) -> list[Skipped]:
    """What was not checked, with what root would run; and what was judged without all that root sees."""
    unreached = {
        node.name for node in cluster.nodes if node.unreached
    }  # a login refused is no right of root's
    found = [s if s.node in unreached else with_command(s) for s in skipped]
    told = {(s.rule, s.node) for s in found}
    for node in cluster.nodes:
        if node.unreached or "uid" in node.unknown or node.uid == 0:
            continue
        for one in SHARPER:
            if one.matters(node) and (one.rule, node.name) not in told:
                reason = f"needs root: {one.reason}"
                found.append(Skipped(one.rule, node.name, reason, one.as_root, is_partial=True))
    return found


def with_command(skipped: Skipped) -> Skipped:
    """The same, with what root would run where a right was missing."""
    if skipped.as_root or not any(word in skipped.reason for word in DENIED):
        return skipped
    own = next((s.as_root for s in SHARPER if s.rule == skipped.rule), "")
    log = KERNEL_LOG if "kernel" in skipped.reason or "kmsg" in skipped.reason else "sudo ringup check ..."
    return replace(skipped, as_root=own or log)
