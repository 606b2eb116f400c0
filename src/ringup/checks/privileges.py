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
    unreached, found = {node.name for node in cluster.nodes if node.unreached}, []
    for one in skipped:
        is_denied = one.node not in unreached and any(word in one.reason for word in DENIED)
        if is_denied and not one.as_root:
            log = KERNEL_LOG if "kernel" in one.reason or "kmsg" in one.reason else "sudo ringup check ..."
            one = replace(one, as_root=HIDDEN.get(one.rule, ("", ""))[1] or log)
        found.append(one)
    listed = {(s.rule, s.node) for s in found}
    for node in cluster.nodes:
        if node.unreached or "uid" in node.unknown or node.uid == 0:
            continue
        for rule, (reason, as_root) in HIDDEN.items():
            matters = rule not in MATTERS or MATTERS[rule](node)
            if matters and (rule, node.name) not in listed:
                found.append(Skipped(rule, node.name, f"needs root: {reason}", as_root, is_partial=True))
    return found
