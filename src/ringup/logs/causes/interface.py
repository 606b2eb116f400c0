"""The network interfaces of NCCL and Gloo, and whether peers can be reached through them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from ringup.addresses import has_virtual_name, is_loopback, subnet
from ringup.logs.causes.symptoms import first_value, of_an_earlier_attempt, on
from ringup.logs.evidence import HostNetworks, LogEvidence, is_link_local
from ringup.logs.lines import Event
from ringup.logs.patterns import OF_ROLE
from ringup.logs.rule import MAX_EVIDENCE, Cause, Confidence, Found, cause, report
from ringup.rules import Fix
from ringup.units import assignment, first_of_each, grouped, summarize_names

_NCCL_SYNTAX = r".*[\^,=].*"


@cause("interface-name-missing", overcome=None)
def interface_name_missing(log: LogEvidence) -> Found:
    nccl = log.all("no-socket-interface")
    gloo = [e for e in log.all("gloo-no-address") if not re.fullmatch(_NCCL_SYNTAX, e["name"])]
    if not (nccl or gloo):
        garbage = [e for e in log.all("address-family") if e.number("family") not in (0, 2, 10)]
        if garbage:
            text = "another rank published no address: its interface setting matches nothing, or it runs"
            text += " another NCCL; read that rank's log"
            return report(garbage, text, "low", nodes=(), ranks=())
        text = "a socket has no address: there is no usable interface here"
        return report(log.all("no-address"), text, "medium")
    first = (nccl or gloo)[0]
    speaker = log.host(first)
    variable = "NCCL_SOCKET_IFNAME" if nccl else "GLOO_SOCKET_IFNAME"
    name = (gloo[0]["name"] if gloo else "") or speaker.value("NCCL_SOCKET_IFNAME")
    text = f"no usable interface matches {variable}{'=' + name if name else ''}{on(first.host)}"
    offered = [e for e in log.all("offered-interface") if e.host in ("", first.host)]
    down = log.all("ibdev2netdev", state="(?i)down", netdev=re.escape(name)) if name else []
    down += [e for e in offered if e["name"] == name and e["state"].lower() == "down"]
    if down:
        text += " (it is listed as Down)"
    elif offered and name:
        up = ", ".join(e["name"] for e in offered if e["state"].lower() == "up" and e["kind"] != "loopback")
        text += f" (it has {up})"
    return report([*nccl, *gloo, speaker.env.get(variable), *down], text)


@cause("gloo-ifname-in-nccl-syntax", overcome=None)
def gloo_ifname_in_nccl_syntax(log: LogEvidence) -> Found:
    lines = log.all("gloo-no-address", name=_NCCL_SYNTAX)
    return report(lines, f"Gloo looks for an interface called {first_value(lines, 'name')!r}")


def _one_machine(log: LogEvidence) -> bool:
    """Whether the log shows that all ranks run on one machine: no data crosses an interface."""
    if shown := [e.number("nodes") for e in log.all("topology")]:
        return max(shown) == 1
    if len(log.hosts) > 1 or log.spans_hosts:
        return False
    here = {(c.comm_id or str(c.nranks), c.rank, c.nranks) for c in log.communicators}
    counts = Counter((key, nranks) for key, _, nranks in here)
    return any(count == nranks for (_, nranks), count in counts.items())


@cause("virtual-interface-chosen")
def virtual_interface_chosen(log: LogEvidence) -> Iterator[Cause | None]:
    failed = log.outcome.stopped
    if not (failed and _one_machine(log)):
        found = filter(None, (_virtual(log, host, failed) for host in log.hosts.values()))
        for same in grouped(((one.text, one.severity, one.confidence), one) for one in found).values():
            names = tuple(name for one in same for name in one.nodes)
            lines = [e for of_each in zip_longest(*(one.evidence for one in same)) for e in of_each if e]
            text = same[0].text.format(on=on(summarize_names(names)))
            fixes = grouped((one.fix.text, name) for one in same if one.fix for name in one.nodes)
            each = "; ".join(f"on {summarize_names(hosts)}: {fix}" for fix, hosts in fixes.items())
            fix = Fix(each) if len(fixes) > 1 else same[0].fix
            yield replace(same[0], text=text, nodes=names, evidence=tuple(lines[:MAX_EVIDENCE]), fix=fix)
    bridges = first_of_each(
        (e.host, e) for e in log.all("bootstrap", address=r"172\.17\..*", interface=r"eth\d+")
    )
    listed = any(has_virtual_name(n) for h in log.hosts.values() for n, _ in h.sockets.values())
    if len(bridges) > 1 and failed and not listed:
        text = "several hosts use an address of Docker's default bridge, which no other host can reach"
        yield report(bridges.values(), text, "low")
    # Docker gives them out in order, from 172.17.0.2 on.
    dialled = log.all("nccl-connect", "gloo-connect", address=r"172\.17\.0\..*")
    if "" not in log.hosts and not any(map(_boots_on_virtual, log.hosts.values())):
        text = f"a rank connects to {first_value(dialled, 'address')}, an address of Docker's default bridge"
        yield report(dialled, text, "medium", fix=_of_mpi(dialled))


_MPI = Fix(
    "give mpirun the network that the nodes share, `--mca btl_tcp_if_include 10.0.0.0/24`, or exclude the"
    " others: `--mca btl_tcp_if_exclude docker0,lo`."
)


def _of_mpi(dialled: list[Event]) -> Fix | None:
    """The fix where Open MPI's TCP layer connects (help-mpi-btl-tcp.txt), which reads no variable of NCCL."""
    return _MPI if dialled and all("Message:" in e.text for e in dialled) else None


def _boots_on_virtual(host: HostNetworks) -> bool:
    return bool(host.bootstrap and has_virtual_name(host.bootstrap[0]))


def _virtual(log: LogEvidence, host: HostNetworks, failed: Event | None) -> Cause | None:
    from ringup.logs.causes.process import own_exceptions  # here: causes are registered in order of import

    boot = _boots_on_virtual(host)
    virtual = [n for n, _ in host.sockets.values() if has_virtual_name(n)]
    if (host.ib_devices and host.kind not in ("", "Socket") and not boot) or not (virtual or boot):
        return None
    bind = [e for e in log.all("nccl-bind") if e.host == host.name]
    carrying = [n for net, i in host.used if (n := host.device(net, i)) and has_virtual_name(n)]
    listed = [e for tag in ("net-using", "socket-list", "bootstrap") for e in host.events.get(tag, ())]
    names = summarize_names(
        [*([host.bootstrap[0]] if boot and host.bootstrap else []), *carrying, *virtual], 6
    )
    fix = _pin(host)
    signalled = any(e["name"] or e["code"].startswith("-") for e in log.all("exit"))
    died = signalled or log.has("exit-signal", "gpu-oom", "oom-kill", "cuda-failure", "illegal-access")
    died = died or bool(own_exceptions(log))
    lost = not log.outcome.trained and (log.outcome.failure(*OF_ROLE["local"]) or log.outcome.hang)
    done = any(c.host == host.name and c.complete for c in log.communicators)
    most = len(virtual) > max(1, len(host.sockets) / 2)
    if done and not (lost and (bind or carrying)):
        text = f"virtual interfaces ({names}) are in use{{on}}"
        return report(listed, text, "low", severity="note", fix=fix)
    is_open = failed or log.spans_hosts or len(virtual) > 2  # else no line shows another machine
    if boot or bind or (failed and (carrying or _dialled_blindly(log))) or (most and not died and is_open):
        text = f"NCCL uses virtual interfaces{{on}}: {names}"
        # A hang without a failed connection may also be the path's fault.
        unproven = carrying and not (bind or boot or log.has("nccl-connect"))
        sure: Confidence = "high" if bind or boot else "low" if unproven else "medium"
        return report([*bind, *listed], text, sure, fix=fix)
    if died or not failed:
        text = f"virtual interfaces ({names}) are among NCCL's{{on}}"
        return report(listed, text, "low", severity="warning", fix=fix)
    return None


def _dialled_blindly(log: LogEvidence) -> bool:
    """Whether a data connection failed and no line has its address, which NCCL before 2.4 leaves out."""
    dialled = log.all("nccl-connect", lacks="retrying")
    boot = log.all("unwind", source=".*bootstrap.*")
    return bool(dialled) and not boot and not first_value(dialled, "address")


def _pin(host: HostNetworks) -> Fix:
    for name, address in host.sockets.values():
        if not (has_virtual_name(name) or is_link_local(address) or is_loopback(address)):
            text = f"set {assignment('NCCL_SOCKET_IFNAME', name)} on every process"
            return Fix(text, env={"NCCL_SOCKET_IFNAME": name})
    return Fix("name the routable interface, or exclude these: NCCL_SOCKET_IFNAME=^docker,br-,veth,virbr,lo")


@cause("link-local-address-chosen")
def link_local_address_chosen(log: LogEvidence) -> Found:
    """
    A peer is dialled at an fe80:: or 169.254 address; that works only on one link and with equal interfaces.

    Why: an interface without IPv4 is offered with its link-local address, whose zone is another one
    on the peer.
    Fix: set `NCCL_SOCKET_FAMILY=AF_INET`, or `NCCL_SOCKET_IFNAME` to an interface with a routable address.
    In logs: `Connect to fe80::...%ib0<port> failed`.
    """
    dialled = [e for e in log.all("nccl-connect", "gloo-connect") if is_link_local(e["address"].strip("["))]
    if dialled:
        address = dialled[0]["address"]
        text = f"the peer's link-local address {address} cannot be reached from here"
        return report(dialled, text, fix=_off_the_link(address))
    for host in log.hosts.values():
        refused = [e for e in log.all("nccl-bind") if e.host == host.name]
        name, address = host.bootstrap or ("", "")
        if refused and is_link_local(address) and not has_virtual_name(name):
            text = f"{name} has only a link-local address, and NCCL cannot listen on it"
            events = [*refused, *host.events.get("bootstrap", [])[:1]]
            return report(events, text, "medium", fix=_off_the_link(address))
        used = [host.sockets[i] for net, i in host.used if net == "Socket" and i in host.sockets]
        carrying = [name for name, address in used if is_link_local(address)]
        done = any(c.complete for c in log.communicators if c.host == host.name)
        if carrying and log.outcome.stopped and not done:
            text = f"data channels use {carrying[0]}, which has only a link-local address"
            sure: Confidence = "medium" if refused or log.has("nccl-connect") else "low"
            return report([*refused, *host.events.get("net-using", [])], text, sure)
    return None


def _off_the_link(address: str) -> Fix:
    if address.startswith("169.254."):
        name = "NCCL_SOCKET_IFNAME (for UCX: UCX_NET_DEVICES)"
        return Fix(f"set {name} to an interface with a routable address, on every process")
    env = {"NCCL_SOCKET_FAMILY": "AF_INET"}
    return Fix("set NCCL_SOCKET_FAMILY=AF_INET, or name an interface with IPv4", env)


@cause("loopback-interface-chosen")
def loopback_interface_chosen(log: LogEvidence) -> Found:
    if _one_machine(log):
        return None
    for host in log.hosts.values():
        chosen = [n for n, a in host.sockets.values() if n == "lo" or is_loopback(a)]
        boot = bool(host.bootstrap and (host.bootstrap[0] == "lo" or is_loopback(host.bootstrap[1])))
        sure = boot or len(host.sockets) == len(chosen)
        if not (boot or chosen) or not (sure or host.sockets.get(0, ("",))[0] == "lo"):
            continue
        if not log.spans_hosts and not any(net == "Socket" for net, _ in host.used):
            continue
        listed = [e for tag in ("bootstrap", "net-using", "env-set") for e in host.events.get(tag, ())]
        listed = [e for e in listed if e.tag != "env-set" or e["name"] == "NCCL_SOCKET_IFNAME"]
        text = f"NCCL uses lo{on(host.name)} in a job of several hosts"
        unproven: Confidence = "medium" if len(log.hosts) > 1 and log.outcome.failed else "low"
        return report(listed, text, "high" if sure else unproven)
    dialled = [e for e in log.all("nccl-connect") if is_loopback(e["address"]) and log.spans_hosts]
    return report(dialled, f"a peer is dialled at {first_value(dialled, 'address')}", "medium")


# Addresses that cannot be reached, although the interface looks right.


def network_of(address: str) -> str:
    """
    The probable /24 of an IPv4 address; "" for other text.

    Logs do not print prefix lengths; two addresses in one /24 count as neighbours, two in different /16 as
    strangers.

    >>> network_of("10.12.5.64"), network_of("fe80::1")
    ('10.12.5', '')
    """
    return subnet(address, 24).rpartition(".")[0] if ":" not in address else ""


FEWEST_TRIES = 3
"""Of a connection; a listener that is late refuses the first ones."""


@cause("peer-unreachable-on-interface", overcome=None)
def peer_unreachable_on_interface(log: LogEvidence) -> Found:
    foreign, lost = log.all("no-common-subnet"), log.all("mpi-lost")
    if foreign:
        address = first_value(foreign, "address") or "NCCL_COMM_ID's address"
        text = f"no interface here is in the network of {address}, which NCCL_COMM_ID names"
        return report(foreign, text)
    again = of_an_earlier_attempt(log)
    dialled = [e for e in log.all("nccl-connect", "gloo-connect") if e not in again]
    dialled = [e for e in dialled if not (is_link_local(a := e["address"].strip("[]")) or is_loopback(a))]
    hard = [e for e in dialled if "retrying" not in e.text] or (dialled if not log.outcome.set_up else [])
    if log.has("file-init"):  # the address is in a file, and may be that of an earlier run
        hard = [e for e in hard if "Connection refused" not in (e["reason"], e["reason2"])]
    if log.has("root-count", "root-info", "rank-checked-in"):
        # The root gave up after the ranks reported to it: nothing listens at its address any more.
        gone = ("Connection refused", "Software caused connection abort")
        hard = [e for e in hard if e["reason"] not in gone]
    placed = [h for h in log.hosts.values() if h.bootstrap and network_of(h.bootstrap[1])]
    firsts = [h.events["bootstrap"][0] for h in placed]
    # Hosts whose addresses share not even a /16.
    apart = firsts if len({network_of(e["address"]).rpartition(".")[0] for e in firsts}) > 1 else []
    if hard:
        found = _unreachable(log, [*hard, *log.all("syn-sent")], apart)
        is_one_try = len(hard) < FEWEST_TRIES and all("retrying" in e.text for e in hard)
        return replace(found, confidence="low") if found and is_one_try else found
    if (unanswered := log.all("syn-sent")) and not (log.outcome.went_on or log.has("client-timeout")):
        address = unanswered[0]["address"]
        text = f"{address} does not answer (SYN-SENT): a filter drops it, or no host has that address"
        return report(unanswered, text, "medium" if len(unanswered) > 1 or log.outcome.stopped else "low")
    if lost and not log.has("ssh-connect"):
        text = "mpirun lost its daemon on a node: can it reach the first node's address?"
        return report(lost, text, "low")
    if log.has("gloo-mesh") and not log.has("gloo-remote", "gloo-connect", "gloo-loopback"):
        text = (
            "Gloo cannot connect to a peer and does not say where: compare the addresses the hosts announce"
        )
        return report(log.all("gloo-mesh"), text, "low")
    if not apart or log.outcome.set_up:
        return None
    fix = _shared_fix(log)
    shown = ", ".join(f"{h.name} {' '.join(h.bootstrap)}" for h in log.hosts.values() if h.bootstrap)
    text = f"hosts bootstrap on addresses of different networks ({shown}) and no rank continued"
    if fix or log.outcome.hang:
        return report([*apart, log.outcome.hang], text, "medium", fix=fix)
    return report(apart, text, "low", severity="warning")


def _unreachable(log: LogEvidence, events: list[Event], apart: list[Event]) -> Cause | None:
    address = first_value(events, "address")
    reason = first_value(events, "reason", "reason2")
    speaker = events[0].host
    if speaker in log.hosts and address in [a for _, a in log.hosts[speaker].sockets.values() if a]:
        if any("refused" in e.text for e in events):
            text = f"{speaker} cannot connect to its own address {address}: "
            text += "look for the failure of its own service thread first"
            return report(events, text, "low")
        text = f"{speaker} gets no answer from its own address {address} ({reason.lower() or 'timeout'}): "
        text += "a firewall there drops it; a listener that died would refuse"
        fix = Fix(f"firewall rules of {speaker} for its own address", commands=("nft list ruleset",))
        return report(events, text, "medium", fix=fix)
    text = f"{address or 'a peer'} cannot be reached{f' from {speaker}' if speaker else ''}"
    for host in log.hosts.values():
        if address and host.bootstrap and host.bootstrap[1] == address:
            text += f"; it is what {host.name} chose ({host.bootstrap[0]})"
            break
    if reason and reason != "Software caused connection abort":
        text += f": {reason.lower()}"
    placed = [h.bootstrap for h in log.hosts.values() if h.bootstrap]
    advice = _of_mpi(events) or _shared_fix(log)
    if len(placed) > 1 and {network_of(a) for _, a in placed} == {network_of(address)} - {""}:
        names = summarize_names(name for name, _ in placed)
        advice = Fix(f"routes and firewall between the hosts: NCCL uses their common network ({names})")
    return report([*events, *apart], text, "high" if address and apart else "medium", fix=advice)


def _shared_fix(log: LogEvidence) -> Fix | None:
    """The interface of a network in which every host has an address, if the lists show one."""
    names: dict[str, dict[str, str]] = defaultdict(dict)
    hosts = [h for h in log.hosts.values() if h.sockets]
    for host in hosts:
        for name, address in host.sockets.values():
            if network_of(address) and not is_loopback(address):
                names[network_of(address)].setdefault(host.name, name)
    shared = next((v for v in names.values() if len(v) == len(hosts) > 1), {})
    if len(set(shared.values())) > 1:
        each = ", ".join(f"{host}: {name}" for host, name in shared.items())
        return Fix(f"set NCCL_SOCKET_IFNAME to the interface of the network all hosts share ({each})")
    for value in shared.values():
        text = f"set {assignment('NCCL_SOCKET_IFNAME', value)} on every process (the network all hosts share)"
        return Fix(text, env={"NCCL_SOCKET_IFNAME": value, "GLOO_SOCKET_IFNAME": value})
    return None
