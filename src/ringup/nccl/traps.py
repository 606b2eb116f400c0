"""Settings of NCCL whose effect differs from what they suggest, each with its value and effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ringup.model import Interface, RdmaPort
from ringup.nccl.interface_choice import ANY, Filter, Version, parse_names
from ringup.nccl.rdma_devices import is_disabled, most_devices
from ringup.nccl.variables import number
from ringup.units import assignment

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Kinds of paths, as `ncclGetLevel` (src/graph/paths.cc) compares them, by letters."""
LOG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
"""In capital or small letters (`src/debug.cc`)."""


def all_traps(
    environment: Mapping[str, str],
    interfaces: Sequence[Interface],
    ports: Sequence[RdmaPort],
    version: Version,
) -> tuple[str, ...]:
    """All sentences about the settings, in the order in which NCCL reads them."""
    return (
        *_socket_traps(environment, interfaces, ports),
        *_hca_traps(environment, interfaces, ports, version),
        *_switch_traps(environment, ports, version),
    )


def ruled_out(name: str, environment: Mapping[str, str]) -> str:
    """Another variable that makes this one ineffective; "" for none."""
    is_of_rdma = name.startswith("NCCL_IB_") and name != "NCCL_IB_DISABLE"
    if is_of_rdma and is_disabled(environment):
        return f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']} turns off RDMA, which it is for"
    if is_of_rdma and environment.get("NCCL_NET", "").lower() == "socket":
        return f"NCCL_NET={environment['NCCL_NET']} leaves no use for it"
    if name == "NCCL_P2P_LEVEL" and environment.get("NCCL_P2P_DISABLE") == "1":
        return "NCCL_P2P_DISABLE=1 leaves no use for it"
    if name == "NCCL_DEBUG_SUBSYS" and not environment.get("NCCL_DEBUG"):
        return "nothing is logged as long as NCCL_DEBUG is not set"
    return ""


def spelling(name: str, value: str, limit: int = 16) -> Iterator[str]:
    """Errors in a filter that do not depend on the node."""
    setting = f"{name}={value}"
    rest = value.removeprefix("^")
    if value == "^":
        yield f"{setting} excludes everything"
    if rest.startswith("=="):
        exact = rest[2:].split(",")[0]
        yield (
            f"{setting}: one = too many, it asks for a name that begins with = and nothing matches; "
            f"inside quotes or YAML write {value.replace('==', '=', 1)} (documentation shows "
            f"`export {name}=={exact}`, where the first = is the shell's)"
        )
    elif rest.startswith("=^"):
        yield f"{setting}: ^ must come before =; written this way it matches names that begin with ^"
    if any(quote in value for quote in "\"'"):
        yield f"{setting}: quotes are part of the name, nothing matches; leave them out of the value itself"
    if any(item != item.strip() for item in rest.lstrip("=").split(",")):
        yield f"{setting}: blanks count as part of the name, so the entry never matches; remove them"
    if len([*filter(None, rest.lstrip("=").split(","))]) > limit:
        yield f"{setting}: only the first {limit} names count, the rest is ignored"


def _too_many(setting: str, parsed: Filter, item: str, taken: Sequence[str]) -> Iterator[str]:
    """An item without = that matches its own name and others."""
    if not parsed.exact and item in taken and len(taken) > 1:
        what, also = "excludes" if parsed.negate else "takes", ", ".join(n for n in taken if n != item)
        yield f"{setting}: without = it {what} every name that begins with {item}, also {also}"


def _socket_traps(
    environment: Mapping[str, str], interfaces: Sequence[Interface], ports: Sequence[RdmaPort]
) -> Iterator[str]:
    value = environment.get("NCCL_SOCKET_IFNAME", "")
    if (family := environment.get("NCCL_SOCKET_FAMILY", "")) not in ("", "AF_INET", "AF_INET6"):
        yield f"NCCL_SOCKET_FAMILY={family} is neither AF_INET nor AF_INET6 and so restricts nothing"
    if not value:
        return
    setting = f"NCCL_SOCKET_IFNAME={value}"
    if len(value) == 1:
        yield f"{setting}: a value of one character is ignored"
        return
    yield from spelling("NCCL_SOCKET_IFNAME", value)
    if environment.get("NCCL_COMM_ID"):
        yield f"{setting} is ignored for the bootstrap: NCCL_COMM_ID is set, and its subnet decides"
    parsed = parse_names(value)
    if any(port != ANY for _, port in parsed.items):
        yield f"{setting}: what follows : is ignored for interfaces"
    known = [i.name for i in interfaces]
    devices = {p.device for p in ports}
    for item, _ in parsed.items:
        taken = [name for name in known if parsed.names(item, name)]
        if item in devices and item not in known:
            netdev = next((p.netdev for p in ports if p.device == item and p.netdev), "")
            instead = f", its interface is {netdev}" if netdev else ""
            yield f"{setting}: {item} is an RDMA device, not an interface{instead}"
        elif known and not taken:
            yield f"{setting}: no interface {'is called' if parsed.exact else 'begins with'} {item}"
        yield from _too_many(setting, parsed, item, taken)
    if parsed.negate and parsed.accepts("lo"):
        whole = value.replace("^=", "^", 1)  # an exact docker leaves docker0 in
        yield f"{setting}: a filter of one's own does not exclude lo or docker, add them: {whole},docker,lo"


def _hca_traps(
    environment: Mapping[str, str],
    interfaces: Sequence[Interface],
    ports: Sequence[RdmaPort],
    version: Version,
) -> Iterator[str]:
    if not (value := environment.get("NCCL_IB_HCA", "")):
        return
    setting = f"NCCL_IB_HCA={value}"
    if is_disabled(environment):
        yield f"{setting} changes nothing: NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']}"
        return
    limit = most_devices(version)
    yield from spelling("NCCL_IB_HCA", value, limit)
    parsed = parse_names(value, limit)
    known = list(dict.fromkeys(p.device for p in ports))
    netdevs = {p.netdev: p for p in ports if p.netdev}
    others = {i.name for i in interfaces}
    for item, port in parsed.items:
        taken = [name for name in known if parsed.names(item, name)]
        if not taken and item in netdevs:
            yield f"{setting}: {item} is an interface, not an RDMA device: it is {netdevs[item].device}'s"
        elif not taken and item in others:
            yield f"{setting}: {item} is an interface with no RDMA device known, no device matches"
        elif known and not taken:
            yield f"{setting}: no device {'is called' if parsed.exact else 'begins with'} {item}"
        yield from _too_many(setting, parsed, item, taken)
        if port != ANY and taken and port not in {p.number for p in ports if p.device in taken}:
            yield f"{setting}: {item} has no port {port}"


def _switch_traps(env: Mapping[str, str], ports: Sequence[RdmaPort], version: Version) -> Iterator[str]:
    for name in ("NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX"):
        if (value := env.get(name, "")) and not value.strip().lstrip("+-")[:1].isdigit():
            yield f"{name}={value} is not a number and counts as 0"
    if (level := env.get("NCCL_DEBUG", "")) and level.upper() not in LOG_LEVELS:
        setting = assignment("NCCL_DEBUG", level)
        yield f"{setting} is none of NCCL's levels, nothing is logged: {', '.join(LOG_LEVELS)}"
    for name in ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL"):
        if (value := env.get(name, "")) and value not in LEVELS and not value[:1].isdigit():
            yield f"{name}={value} is none of NCCL's levels and has no effect: {', '.join(LEVELS)}"
    if env.get("NCCL_IB_GID_INDEX") and not is_disabled(env):
        index = number(env, "NCCL_IB_GID_INDEX", 0)
        active = [p for p in ports if p.state == "ACTIVE"]
        if active and all(p.link_layer == "InfiniBand" for p in active):
            yield f"NCCL_IB_GID_INDEX={index} changes nothing: it is for RoCE, the ports are InfiniBand"
    if env.get("NCCL_OOB_NET_IFNAME") and not number(env, "NCCL_OOB_NET_ENABLE", 0):
        yield "NCCL_OOB_NET_IFNAME changes nothing without NCCL_OOB_NET_ENABLE=1 (2.23.4 and later)"
    elif number(env, "NCCL_OOB_NET_ENABLE", 0) and version < (2, 23, 4):
        yield "NCCL_OOB_NET_ENABLE is not known to NCCL before 2.23.4"
