"""Which network interfaces NCCL and Gloo chose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import failure, hang, trained
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import HostStory, Story, is_link_local, is_loopback, is_virtual
from ringup.rules import Fix


@cause(problems.INTERFACE_NAME_MISSING, passing=True)
def interface_name_missing(story: Story) -> Iterator[Cause]:
    said = story.all("no-socket-interface")
    gloo = [e for e in story.all("gloo-no-address") if not re.search(r"[\^,=]", e["name"])]
    if said or gloo:
        host = (said or gloo)[0].host
        name = gloo[0]["name"] if gloo else ""
        variable = "GLOO_SOCKET_IFNAME" if gloo and not said else "NCCL_SOCKET_IFNAME"
        speaker = story.host((said or gloo)[0])
        name = name or speaker.value("NCCL_SOCKET_IFNAME")
        text = (
            f"no usable interface fits {variable}{'=' + name if name else ''}{f' on {host}' if host else ''}"
        )
        listed = [
            e
            for e in story.all("ibdev2netdev")
            if name and e["netdev"] == name and e["state"].lower() == "down"
        ]
        offered = [e for e in story.all("offered-interface") if e.host == host]
        listed += [e for e in offered if e["name"] == name and e["state"] == "Down"]
        if listed:
            text += " (it is listed as Down)"
        elif offered and name:
            up = ", ".join(e["name"] for e in offered if e["state"] == "Up" and e["kind"] != "loopback")
            text += f" (it has {up})"
        set_by = [speaker.env[variable]] if variable in speaker.env else []
        yield seen([*said, *gloo, *set_by, *listed], text)
        return
    garbage = [e for e in story.all("address-family") if e.number("family") not in (0, 2, 10)]
    if garbage:
        yield seen(
            garbage,
            "another rank published no address at all: its interface setting matches nothing; read "
            "that rank's log",
            "medium",
            nodes=(),
            ranks=(),
        )
    elif bare := story.all("no-address"):
        yield seen(bare, "there is no address to make a socket for: no usable interface here", "medium")


@cause(problems.GLOO_IFNAME_IN_NCCL_SYNTAX, passing=True)
def gloo_ifname_in_nccl_syntax(story: Story) -> Iterator[Cause]:
    said = [e for e in story.all("gloo-no-address") if re.search(r"[\^,=]", e["name"])]
    if said:
        yield seen(said, f"Gloo looks for an interface called {said[0]['name']!r}")


def _socket_names(host: HostStory) -> list[str]:
    return [name for name, _ in host.sockets.values()]


_NOT_OF_THE_NETWORK = (
    "exit",
    "exit-signal",
    "exception",
    "child-failed",
    "cuda-failure",
    "nccl-cuda",
    "gpu-oom",
)
"""Failures that no interface is behind."""


def _one_machine(story: Story) -> bool:
    """Whether the log shows that all ranks run on one machine: no data crosses an interface."""
    if shown := [e.number("nodes") for e in story.all("topology")]:
        return max(shown) == 1
    if len(story.hosts) > 1 or story.spans_hosts:
        return False
    here = {(c.comm_id or str(c.nranks), c.rank, c.nranks) for c in story.communicators}
    counts = Counter((key, nranks) for key, _, nranks in here)
    return any(count == nranks for (_, nranks), count in counts.items())


@cause(problems.VIRTUAL_INTERFACE_CHOSEN)
def virtual_interface_chosen(story: Story) -> Iterator[Cause]:
    failed = failure(story) or hang(story)
    alone = _one_machine(story)
    lost = not trained(story) and (failure(story, *_NOT_OF_THE_NETWORK) or hang(story))
    blind = _dialled_blindly(story)
    for host in story.hosts.values():
        virtual = [n for n in _socket_names(host) if is_virtual(n)]
        boot = bool(host.bootstrap and is_virtual(host.bootstrap[0]))
        if host.ib_devices and host.kind not in ("", "Socket") and not boot:
            continue
        carrying = [n for net, i in host.used if (n := host.device(net, i)) and is_virtual(n)]
        listed = (
            host.events.get("net-using", [])
            + host.events.get("socket-list", [])
            + host.events.get("bootstrap", [])
        )
        bind = [e for e in story.all("nccl-bind") if e.host == host.name]
        if not virtual and not boot:
            continue
        names = ", ".join(
            dict.fromkeys(([host.bootstrap[0]] if boot and host.bootstrap else []) + carrying + virtual)
        )[:120]
        where = f" on {host.name}" if host.name else ""
        done = [c for c in story.communicators if c.host == host.name and c.completed]
        fix = _pin(story, host)
        if alone and failed:
            continue
        if done and not (lost and (bind or carrying)):
            yield seen(
                listed, f"virtual interfaces ({names}) are in use{where}", "low", severity="note", fix=fix
            )
        elif (
            boot
            or bind
            or ((carrying or blind) and failed)
            or (len(virtual) > 1 and 2 * len(virtual) > len(host.sockets))
        ):
            confidence = "high" if bind or boot else "medium"
            yield seen([*bind, *listed], f"NCCL uses virtual interfaces{where}: {names}", confidence, fix=fix)  # type: ignore[arg-type]
        elif virtual and not failed:
            yield seen(
                listed,
                f"virtual interfaces ({names}) are among NCCL's{where}",
                "low",
                severity="warning",
                fix=fix,
            )
    bridges = _bridge_addresses(story)
    if (
        len(bridges) > 1
        and failed
        and not any(is_virtual(n) for h in story.hosts.values() for n in _socket_names(h))
    ):
        yield seen(
            bridges,
            "several hosts use an address of Docker's default bridge, which no other host can reach",
            "low",
        )
    used = [e for e in story.all("nccl-connect", "gloo-connect") if e["address"].startswith("172.17.")]
    if (
        used
        and not story.hosts.keys() & {""}
        and not any(h.bootstrap and is_virtual(h.bootstrap[0]) for h in story.hosts.values())
    ):
        yield seen(
            used, f"a rank dials {used[0]['address']}, an address of Docker's default bridge", "medium"
        )


def _dialled_blindly(story: Story) -> bool:
    """
    Whether a data connection failed and no line says to which address.

    NCCL before 2.4 spreads channels over all listed interfaces and leaves the address out.
    """
    dialled = [e for e in story.all("nccl-connect") if "retrying" not in e.text]
    boot = any("bootstrap" in e["source"] for e in story.all("unwind"))
    return bool(dialled) and not boot and not any(e["address"] for e in dialled)


def _bridge_addresses(story: Story) -> list[Event]:
    """One `Bootstrap` or `Using` line per host whose address is Docker's default 172.17.x."""
    found: dict[str, Event] = {}
    for event in story.all("bootstrap"):
        if event["address"].startswith("172.17."):
            found.setdefault(event.host, event)
    return list(found.values())


def _pin(story: Story, host: HostStory) -> Fix:
    sane = [
        n
        for n, a in host.sockets.values()
        if not is_virtual(n) and not is_link_local(a) and not is_loopback(a)
    ]
    if not sane:
        return Fix(
            "name the routable interface, or exclude these: NCCL_SOCKET_IFNAME=^docker,br-,veth,virbr,lo"
        )
    return Fix(f"NCCL_SOCKET_IFNAME={sane[0]} on every process", env={"NCCL_SOCKET_IFNAME": sane[0]})


@cause("link-local-address-chosen")
def link_local_address_chosen(story: Story) -> Iterator[Cause]:
    """
    A peer is dialled at an fe80:: or 169.254 address; that works only on one link and with equal interfaces.

    Why: an interface without IPv4 is offered with its link-local address, whose zone is another one
    on the peer.

    Fix: `NCCL_SOCKET_FAMILY=AF_INET`, or `NCCL_SOCKET_IFNAME` = an interface with a routable address.

    In logs: `Connect to fe80::...%ib0<port> failed`.
    """
    dialled = [e for e in story.all("nccl-connect", "gloo-connect") if is_link_local(e["address"].strip("["))]
    if dialled:
        yield seen(
            dialled,
            f"the peer's link-local address {dialled[0]['address']} cannot be reached from here",
            "high",
            fix=_off_the_link(dialled[0]["address"]),
        )
        return
    failed = failure(story) or hang(story)
    for host in story.hosts.values():
        refused = [e for e in story.all("nccl-bind") if e.host == host.name]
        if (
            refused
            and host.bootstrap
            and is_link_local(host.bootstrap[1])
            and not is_virtual(host.bootstrap[0])
        ):
            listed = host.events.get("bootstrap", [])[:1]
            text = f"{host.bootstrap[0]} has only a link-local address, and NCCL cannot listen on it"
            yield seen([*refused, *listed], text, "medium", fix=_off_the_link(host.bootstrap[1]))
            return
        carrying = [
            host.sockets[i]
            for net, i in host.used
            if net == "Socket" and i in host.sockets and is_link_local(host.sockets[i][1])
        ]
        done = any(c.completed for c in story.communicators if c.host == host.name)
        bind = [e for e in story.all("nccl-bind") if e.host == host.name]
        if carrying and failed and not done:
            listed = host.events.get("net-using", [])
            yield seen(
                [*bind, *listed],
                f"data channels use {carrying[0][0]}, which has only a link-local address",
                "medium",
            )
            return


def _off_the_link(address: str) -> Fix:
    if address.startswith("169.254."):
        return Fix("NCCL_SOCKET_IFNAME = an interface with a routable address, on every process")
    return Fix(
        "NCCL_SOCKET_FAMILY=AF_INET, or name an interface with IPv4", env={"NCCL_SOCKET_FAMILY": "AF_INET"}
    )


@cause(problems.LOOPBACK_INTERFACE_CHOSEN)
def loopback_interface_chosen(story: Story) -> Iterator[Cause]:
    if _one_machine(story):
        return
    for host in story.hosts.values():
        chosen = [n for n, a in host.sockets.values() if n == "lo" or is_loopback(a)]
        boot = bool(host.bootstrap and (host.bootstrap[0] == "lo" or is_loopback(host.bootstrap[1])))
        if not (
            boot or (chosen and (len(host.sockets) == len(chosen) or host.sockets.get(0, ("",))[0] == "lo"))
        ):
            continue
        if not story.spans_hosts and not any(net == "Socket" for net, _ in host.used):
            continue
        listed = (
            host.events.get("bootstrap", [])
            + host.events.get("net-using", [])
            + host.events.get("env-set", [])
        )
        sure = len(host.sockets) == len(chosen) or boot
        wanted = [e for e in listed if e.tag != "env-set" or e["name"] == "NCCL_SOCKET_IFNAME"]
        yield seen(
            wanted,
            f"NCCL uses lo{f' on {host.name}' if host.name else ''} in a job of several hosts",
            "high" if sure else "medium" if len(story.hosts) > 1 and failure(story) else "low",
        )
        return
    dialled = [e for e in story.all("nccl-connect") if is_loopback(e["address"]) and story.spans_hosts]
    if dialled:
        yield seen(dialled, f"a peer is dialled at {dialled[0]['address']}", "medium")
