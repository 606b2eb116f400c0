"""
Interfaces, addresses and routes of a node, from the kernel's own dump (rtnetlink).

Netlink answers for this network namespace whatever is mounted on /sys, knows the kind of a device, and needs
one read where sysfs needs hundreds.  Numbers are from linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h and
net/if_arp.h.
"""

import _socket as socket  # the C half: `import socket` costs 8 ms more
import os
import struct

from ringup.agent.proc.files import link as target
from ringup.agent.proc.files import integer, listed, text
from ringup.agent.proc.netlink import attributes, dump, nested
from ringup.link_kinds import KINDS


GETLINK, GETADDR, GETROUTE = 18, 22, 26
IFF_UP, IFF_LOWER_UP = 0x1, 0x10000
ARPHRD_INFINIBAND, ARPHRD_LOOPBACK, ARPHRD_NONE = 32, 772, 65534
SCOPES = {0: "global", 200: "site", 253: "link", 254: "host"}
SETTINGS = ("rp_filter", "arp_ignore", "arp_announce")
MOST_ROUTES = 1000
MOST_BONDS = 64


def string(data):
    return data.split(b"\0")[0].decode("utf-8", "backslashreplace")


def uint(data):
    return struct.unpack("=I", data[:4])[0]


def links():
    """Interface facts by index, without addresses."""
    found = {}
    # Without SKIP_STATS (8) a NIC with 128 virtual functions answers tens of kilobytes.
    body = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + struct.pack("=HHI", 8, 29, 8)
    for data in dump(GETLINK, body):
        _, arp_type, index, flags, _ = struct.unpack_from("=BxHiII", data)
        attrs = attributes(data, 16)
        info = attributes(attrs.get(18, b""), 0)
        found[index] = {
            "name": string(attrs.get(3, b"")),
            "index": index,
            "is_up": bool(flags & IFF_UP),
            "has_carrier": bool(flags & IFF_LOWER_UP),
            "mtu_bytes": uint(attrs[4]) if 4 in attrs else 0,
            "master": uint(attrs[10]) if 10 in attrs else 0,
            "arp_type": arp_type,
            "info": string(info.get(1, b"")),
            "addresses": [],
        }
    return found


def add_addresses(found):
    for data in dump(GETADDR, struct.pack("=BBBBI", 0, 0, 0, 0, 0)):
        family, length, _, scope, index = struct.unpack_from("=BBBBI", data)
        attrs = attributes(data, 8)
        raw = attrs.get(2) or attrs.get(1)
        if raw is None or index not in found or family not in (socket.AF_INET, socket.AF_INET6):
            continue
        shown = socket.inet_ntop(family, raw)
        name = SCOPES.get(scope, "global")
        if shown.startswith("169.254."):
            name = "link"  # RFC 3927, whatever its scope
        elif shown.startswith("127."):
            name = "host"
        kind = "inet" if family == socket.AF_INET else "inet6"
        label = string(attrs.get(3, b""))  # getifaddrs has it as the interface's name: "eth0:1"
        label = "" if label == found[index]["name"] else label
        one = {"address": shown, "prefix_length": length, "family": kind, "scope": name, "label": label}
        found[index]["addresses"].append(one)


def kind_of(link, device):
    if link["arp_type"] == ARPHRD_LOOPBACK:
        return "loopback"
    if link["arp_type"] == ARPHRD_INFINIBAND:
        return "infiniband"
    if link["info"]:
        return KINDS.get(link["info"], "virtual")
    if link["arp_type"] == ARPHRD_NONE:
        return "tunnel"
    return "physical" if device else "virtual"


def has_device(base, name, deep=3):
    """Whether a link has a physical device; a bond's or VLAN's lower links must all have one."""
    if os.path.exists("%s/%s/device" % (base, name)):
        return True
    if not deep:
        return False
    lower = [entry[6:] for entry in listed("%s/%s" % (base, name)) if entry.startswith("lower_")]
    return bool(lower) and all(has_device(base, low, deep - 1) for low in lower)


def add_hardware(found, root):
    """Kind, speed, duplex, driver and settings, from sysfs where it shows this namespace's links."""
    base = root + "/sys/class/net"
    conf = root + "/proc/sys/net/ipv4/conf"
    everywhere = {setting: text("%s/all/%s" % (conf, setting)) for setting in SETTINGS}
    for link in found.values():
        name = link["name"]
        # In a namespace with the host's /sys, a link of the same name may be another one.
        same = text("%s/%s/ifindex" % (base, name)) == str(link["index"])
        device = same and os.path.exists("%s/%s/device" % (base, name))
        link["kind"] = kind_of(link, device)
        link["speed_gbit_s"] = None
        # veth and tun claim 10 Gbit/s; a bridge has no rate.
        if same and link["kind"] not in ("bridge", "veth", "tunnel") and has_device(base, name):
            speed = text("%s/%s/speed" % (base, name))
            if speed.isdigit() and 0 < int(speed) < 100000000:
                link["speed_gbit_s"] = int(speed) / 1000.0
        driver = target("%s/%s/device/driver" % (base, name)) if device else ""
        link["driver"] = os.path.basename(driver)
        link["duplex"] = text("%s/%s/duplex" % (base, name)) if same else ""
        for setting in SETTINGS:
            own = text("%s/%s/%s" % (conf, name, setting))
            # The kernel uses the larger of the two (Documentation/networking/ip-sysctl).
            values = [int(v) for v in (own, everywhere[setting]) if v.isdigit()]
            if values or setting == "rp_filter":
                link[setting] = max(values or [0])
        master = found.get(link["master"])
        link["master"] = master["name"] if master else ""


def interfaces(root):
    found = links()
    add_addresses(found)
    add_hardware(found, root)
    for link in found.values():
        del link["arp_type"], link["info"]
    return [found[index] for index in sorted(found)]


def routes(names):
    """Unicast routes of the main table; the number is bounded, except for default routes."""
    found, defaults = [], []
    for family in (socket.AF_INET, socket.AF_INET6):
        for data in dump(GETROUTE, struct.pack("=BBBBBBBBI", family, 0, 0, 0, 0, 0, 0, 0, 0)):
            got, length, _, _, table, _, _, kind, _ = struct.unpack_from("=BBBBBBBBI", data)
            attrs = attributes(data, 12)
            if got != family or kind != 1 or (uint(attrs[15]) if 15 in attrs else table) != 254:
                continue
            where = "%s/%d" % (socket.inet_ntop(family, attrs[1]), length) if 1 in attrs else "default"
            hops = [uint(attrs[4]) if 4 in attrs else 0]
            if 9 in attrs:  # several interfaces (struct rtnexthop: length, flags, hops, index)
                hops = [uint(hop) for _, hop in nested(attrs[9]) if len(hop) >= 4]
            for index in hops:
                route = {
                    "destination": where,
                    "interface": names.get(index, ""),
                    "source": socket.inet_ntop(family, attrs[7]) if 7 in attrs else "",
                }
                (found if 1 in attrs else defaults).append(route)
    return defaults[:MOST_ROUTES] + found[:MOST_ROUTES]


def bond(name, content):
    """One file of /proc/net/bonding: lines of the bond, then lines of each slave."""
    found = {"name": name, "mode": "", "hash_policy": "", "slaves": [], "down": []}
    for line in content.splitlines():
        key, _, value = [part.strip() for part in line.partition(":")]
        if key == "Bonding Mode":
            found["mode"] = value
        elif key.startswith("Transmit Hash Policy"):
            found["hash_policy"] = value.split(" ")[0]
        elif key == "Slave Interface":
            found["slaves"].append(value)
        elif key == "MII Status" and found["slaves"] and value != "up":
            found["down"].append(found["slaves"][-1])
    return found


def bonds(root):
    folder = root + "/proc/net/bonding"
    return [bond(name, text("%s/%s" % (folder, name))) for name in listed(folder)[:MOST_BONDS]]


def whole(path):
    """The last number of a file (tcp_rmem has three); 0 if there is none."""
    return integer((text(path).split() or [""])[-1])


def socket_limits(root):
    base = root + "/proc/sys/net"
    if not os.path.isdir(base):
        raise OSError(2, "/proc/sys/net is not there")
    return {
        "tcp_rmem_max_bytes": whole(base + "/ipv4/tcp_rmem"),
        "tcp_wmem_max_bytes": whole(base + "/ipv4/tcp_wmem"),
        "somaxconn": whole(base + "/core/somaxconn"),
        "conntrack_count": whole(base + "/netfilter/nf_conntrack_count"),
        "conntrack_max": whole(base + "/netfilter/nf_conntrack_max"),
    }


def questions(request, root):
    found = []
    yield "interfaces", lambda: found.extend(interfaces(root)) or found
    yield "routes", lambda: routes({link["index"]: link["name"] for link in found})
    yield "bonds", lambda: bonds(root)
    yield "socket_limits", lambda: socket_limits(root)
