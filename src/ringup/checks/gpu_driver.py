"""The NVIDIA driver: its release against CUDA's, its library's and the other nodes'."""

from __future__ import annotations

from collections.abc import Iterator

from ringup import problems
from ringup.checks.gpu import for_gpus, known, on, seen
from ringup.checks.software import usual
from ringup.facts import Cluster, Node
from ringup.rules import Finding, Fix, check
from ringup.units import printable

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""
CUDA's major release -> the oldest driver branch it runs on.

docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility", table 1.
"""


def branch(release: str) -> int:
    """
    The driver's branch, 0 where it is not told.

    >>> branch("590.48.01"), branch("")
    (590, 0)
    """
    head = release.partition(".")[0]
    return int(head) if head.isdecimal() and len(head) < 6 else 0


@check(
    problems.DRIVER_TOO_OLD_FOR_CUDA, reads=("gpu_driver", "interpreter"), uses=("environment", "gpu_count")
)
@for_gpus
def driver_too_old_for_cuda(cluster: Cluster) -> Iterator[Finding]:
    """A compatibility library on LD_LIBRARY_PATH can make it work all the same: then it only warns."""
    for node in cluster.nodes:
        cuda = branch(node.interpreter.cuda)
        least = LEAST_DRIVER.get(cuda, 0)
        own = branch(node.gpu_driver.version)
        if own and own < least:
            paths = node.environment.get("LD_LIBRARY_PATH", "") if known(node, "environment") else ""
            yield Finding(
                node.name,
                found=f"driver {printable(node.gpu_driver.version, 40)} under torch for CUDA "
                f"{printable(node.interpreter.cuda, 20)}",
                wanted=f"driver {least} or later, or a torch for CUDA {supported(own)}",
                node=node.name,
                severity="warning" if "compat" in paths else "error",
                fix=Fix(
                    "a newer driver, or a wheel for the one that is there",
                    commands=(on(node, "cat", "/proc/driver/nvidia/version"),),
                ),
            )


def supported(driver: int) -> str:
    """The latest CUDA a driver branch runs."""
    return str(max((cuda for cuda, least in LEAST_DRIVER.items() if driver >= least), default=10))


def release_of(node: Node) -> str:
    return node.gpu_driver.version


@check("driver-versions-differ", reads=("gpu_driver",), uses=("gpus",), severity="warning")
@for_gpus
def driver_versions_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have different releases of the GPU driver.

    Why: one node lacks what the others use (NVLink SHARP, DMA-BUF, a fix), or is slower; failures that
    only it has are hard to tell from hardware.

    Fix: one release everywhere.
    """
    wanted = usual(cluster, release_of)
    usually = usual(cluster, vbioses)
    kinds = kinds_with(cluster, usually)
    for node in cluster.nodes:
        own = release_of(node)
        if own and own != wanted:
            yield differs(node, f"driver {printable(own, 40)}", printable(wanted, 40), "warning")
            continue
        firmware = vbioses(node)
        if firmware and firmware != usually and kinds_of(node) == kinds:
            yield differs(node, f"VBIOS {printable(firmware, 120)}", printable(usually, 120), "note")


def differs(node: Node, found: str, wanted: str, severity: str) -> Finding:
    return Finding(
        node.name,
        found=found,
        wanted=f"{wanted}, as on most nodes",
        node=node.name,
        severity="note" if severity == "note" else "warning",
        fix=Fix("one release on all nodes", commands=(on(node, "nvidia-smi", "-q"),)),
    )


def vbioses(node: Node) -> str:
    gpus = seen(node) if known(node, "gpus") else ()
    return ", ".join(sorted({g.vbios for g in gpus if g.vbios}))


def kinds_of(node: Node) -> set[str]:
    return {g.name for g in seen(node)} if known(node, "gpus") else set()


def kinds_with(cluster: Cluster, firmware: str) -> set[str]:
    return next((kinds_of(n) for n in cluster.nodes if vbioses(n) == firmware), set())


@check(problems.DRIVER_LIBRARY_MISMATCH, reads=("gpu_driver",))
@for_gpus
def driver_library_mismatch(cluster: Cluster) -> Iterator[Finding]:
    """In nvidia-smi's own words (NVML error 18)."""
    for node in cluster.nodes:
        driver = node.gpu_driver
        if "Driver/library version mismatch" in driver.error:
            yield Finding(
                node.name,
                found=f"kernel module {printable(driver.version or 'of another release', 40)}, "
                f"library {printable(driver.library or 'of another release', 40)}",
                wanted="both of one release",
                node=node.name,
                fix=Fix(
                    "reboot the node, or reload the module while nothing uses it",
                    commands=(
                        on(node, "cat", "/sys/module/nvidia/version"),
                        on(node, "sudo", "systemctl", "reboot"),
                    ),
                ),
            )
