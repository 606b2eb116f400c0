"""Facts that an ordinary user could not see on the nodes, and the commands that show them to root."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ringup.model import Cluster, Node
from ringup.rules import Skipped

DENIED = ("ermission denied", "not permitted", "needs root", "dmesg_restrict")
KERNEL_LOG = "sudo dmesg -T | grep -Ei 'nvrm|sxid|aer|killed process|mlx5'"


HIDDEN = {
    "port-in-use": ("other users' processes that hold ports are hidden", "sudo ss -ltnp"),
    "orphan-of-earlier-run": (
        "leftover processes and /dev/shm files of other users cannot be judged",
        "sudo ps axo pid,ppid,user,etime,args | grep -E 'torchrun|torch.distributed|deepspeed'",
    ),
    "oom-killer-ran": ("only the kernel log shows which processes were killed", KERNEL_LOG),
    "stuck-processes": (
        "the kernel function in which a process is blocked is hidden",
        "sudo cat /proc/PID/stack",
    ),
    "firewall-drops-high-ports": (
        "the firewall's rules, which explain failed pair tests, cannot be read",
        "sudo nft list ruleset",
    ),
    "acs-enabled": (
        "PCI access control (ACS) is in a hidden part of the PCI configuration space",
        "sudo lspci -vvv | grep -i acsctl",
    ),
}
"""Rule that works for an ordinary user but knows more as root -> why, and root's command."""
MATTERS: dict[str, Callable[[Node], bool]] = {
    "port-in-use": lambda node: any(li.process is None for li in node.listeners),
    "stuck-processes": lambda node: bool(node.stuck.blocked),
    "acs-enabled": lambda node: node.gpu_count > 0,
}
"""Whether root would know more on a node; always true for the other rules."""


def would_add(cluster: Cluster, skipped: Iterable[Skipped]) -> list[Skipped]:
    """The unchecked rules, with root's command; and rules that were judged without root's facts."""
    # A refused login is not a missing privilege.
    unreached = {node.name for node in cluster.nodes if node.unreached}
    found = [s if s.node in unreached else with_command(s) for s in skipped]
    listed = {(s.rule, s.node) for s in found}
    for node in cluster.nodes:
        if node.unreached or "uid" in node.unknown or node.uid == 0:
            continue
        for rule, (reason, as_root) in HIDDEN.items():
            matters = rule not in MATTERS or MATTERS[rule](node)
            if matters and (rule, node.name) not in listed:
                found.append(Skipped(rule, node.name, f"needs root: {reason}", as_root, is_partial=True))
    return found


def with_command(skipped: Skipped) -> Skipped:
    """The same, with root's command if a privilege was missing."""
    if skipped.as_root or not any(word in skipped.reason for word in DENIED):
        return skipped
    _, own = HIDDEN.get(skipped.rule, ("", ""))
    log = KERNEL_LOG if "kernel" in skipped.reason or "kmsg" in skipped.reason else "sudo ringup check ..."
    return replace(skipped, as_root=own or log)
