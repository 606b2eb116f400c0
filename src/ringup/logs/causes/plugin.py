"""Network plugins: missing, failing to start, without SHARP."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import failure, hang, went_on
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story

_OF_NCCL = ("nccl-system", "nccl-internal", "nccl-usage", "nccl-remote", "unwind", "init-stopped", "work")
"""Failures a network plugin can be behind."""


@cause(problems.NETWORK_PLUGIN_MISSING)
def network_plugin_missing(story: Story) -> Iterator[Cause]:
    loaded = {e.host: e for e in story.all("plugin-loaded") if e.host}
    none = {e.host: e for e in story.all("plugin-none") if e.host and e.host not in loaded}
    named = [e for e in story.all("net-not-found") if e["net"] and e["net"].upper() not in ("IB", "SOCKET")]
    if loaded and none:
        failed = failure(story) or hang(story)
        yield seen(
            [*none.values(), *loaded.values()],
            f"{', '.join(sorted(none))} lacks the network plugin that {', '.join(sorted(loaded))} loaded",
            "high",
            severity=None if failed or not went_on(story) else "warning",
            nodes=sorted(none),
        )
    elif named:
        yield seen(named, f"the network {named[0]['net']} is asked for and no plugin offers it", "medium")


@cause("network-plugin-init-failed")
def network_plugin_init_failed(story: Story) -> Iterator[Cause]:
    """
    The network plugin loaded and gave up, or the network asked for could not start.

    Why: no device or permission in the container, too little locked memory, or a libfabric that does not fit.

    Fix: EFA devices and memlock in the container, the libfabric of the plugin; unset NCCL_NET to
    see what works.

    In logs: `aws-ofi-nccl initialization failed`, `Error: network IB not found`.
    """
    forced = [e for e in story.all("net-not-found") if not e["net"] or e["net"].upper() in ("IB", "SOCKET")]
    said = [e for e in story.all("plugin-init-failed") if e["plugin"].upper() not in ("IB", "SOCKET")]
    if forced:
        yield seen(
            [*forced, *story.all("ib-none")[:1]],
            "the network that NCCL_NET asks for could not start",
            "medium",
        )
    elif said:
        goes_on = any(h.kind == "Socket" for h in story.hosts.values()) or story.init_complete
        elsewhere = failure(story) is not None and not story.has(*_OF_NCCL)
        yield seen(
            said,
            "the network plugin gave up" + (", the job goes on over TCP" if goes_on else ""),
            "high",
            severity="warning" if goes_on or elsewhere else None,
        )


@cause("sharp-unavailable", severity="warning")
def sharp_unavailable(story: Story) -> Iterator[Cause]:
    """
    In-network reduction was offered and refused; NCCL goes on point-to-point.

    Why: the switch's aggregation trees are taken, or no SHARP daemon answers.

    Fix: none needed; `NCCL_COLLNET_ENABLE=0` to be quiet.

    In logs: `Cannot create SHARP job(-11)`, `Cannot initialize CollNet, using point-to-point`.
    """
    said = [
        e
        for e in story.all("sharp-off")
        if not re.search(r"Cannot initialize CollNet|disabling CollNet", e.text)
    ]
    if said:
        yield seen(said, "SHARP was offered and refused; NCCL goes on without it", "high")
