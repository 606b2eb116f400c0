"""
Which entry of a RoCE port's GID table NCCL uses.

NCCL `ncclIbGetGidIndex` (src/transport/net_ib.cc): by hand up to 2.20, by itself from 2.21 on.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from ringup.facts import Gid, RdmaPort
from ringup.nccl.choice import Version
from ringup.nccl.rdma import number

CHOOSES: Version = (2, 21, 0)
"""From here on NCCL looks through the table; before, the default is index 0."""


@dataclass(frozen=True)
class GidChoice:
    """The index, and why; `index` is None where the table is not known and would have been needed."""

    index: int | None
    because: str
    gid: Gid | None = None


def gid_index(port: RdmaPort, environment: Mapping[str, str], version: Version) -> GidChoice:
    """The entry of `port`'s table that NCCL connects with."""
    table = {g.index: g for g in port.gids}
    if port.link_layer == "InfiniBand":
        said = "; NCCL_IB_GID_INDEX is not looked at there" if environment.get("NCCL_IB_GID_INDEX") else ""
        return GidChoice(0, f"{port.name} is InfiniBand: addressed by LID, GID 0{said}", table.get(0))
    chosen = number(environment, "NCCL_IB_GID_INDEX", -1 if version >= CHOOSES else 0)
    if chosen >= 0:
        why = "NCCL_IB_GID_INDEX" if environment.get("NCCL_IB_GID_INDEX") else "the default before 2.21"
        known = table.get(chosen)
        lacks = f", an entry {port.name} does not have" if len(table) > 1 and known is None else ""
        return GidChoice(chosen, f"GID index {chosen} of {port.name}: {why}{lacks}", known)
    # A table of one entry comes from ibstatus, which shows no other.
    if len(table) < 2:
        return GidChoice(None, f"the GID table of {port.name} is not known (show_gids tells it)")
    return _looked_through(port, environment, table)


def _looked_through(port: RdmaPort, environment: Mapping[str, str], table: dict[int, Gid]) -> GidChoice:
    """The walk through the table, entry by entry, each judged against the best so far."""
    family = 6 if environment.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else 4
    wanted = number(environment, "NCCL_IB_ROCE_VERSION_NUM", 2)
    subnet = _subnet(environment.get("NCCL_IB_ADDR_RANGE", ""), family)
    best = table.get(0, Gid(0, "::"))
    for index in sorted(table):
        candidate = table[index]
        if index == 0 or _family(candidate) != family or not _within(candidate, subnet):
            continue
        if _family(best) != family or (
            _is_valid(candidate)
            and _roce(candidate) == wanted
            and (_roce(best) != wanted or not _is_valid(best))
        ):
            best = candidate
    kind = best.kind or "kind not told"
    # A VLAN's address, listed before the card's own, is taken like any other.
    where = f", of {best.netdev}" if best.netdev and best.netdev != port.netdev else ""
    return GidChoice(best.index, f"GID index {best.index} of {port.name}: {best.gid}, {kind}{where}", best)


def _subnet(text: str, family: int) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """NCCL_IB_ADDR_RANGE; without `/`, or of another family, it is ignored."""
    if "/" not in text:
        return None
    try:
        subnet = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    return subnet if subnet.version == family else None


def _address(gid: Gid) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.IPv6Address(gid.gid)
    except ValueError:
        return ipaddress.IPv6Address("::")
    return address.ipv4_mapped or address


def _family(gid: Gid) -> int:
    return _address(gid).version


def _within(gid: Gid, subnet: ipaddress.IPv4Network | ipaddress.IPv6Network | None) -> bool:
    address = _address(gid)
    return subnet is None or (address.version == subnet.version and address in subnet)


def _is_valid(gid: Gid) -> bool:
    """Configured and not of the link-local prefix."""
    address = _address(gid)
    return not (address.is_unspecified or (address.version == 6 and address.is_link_local))


def _roce(gid: Gid) -> int:
    return 2 if "v2" in gid.kind else 1
