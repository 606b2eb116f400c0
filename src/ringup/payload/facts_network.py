"""
Interfaces, addresses and routes of a node, from the kernel's own dump (rtnetlink).

Netlink answers for this network namespace whatever is mounted on /sys, knows what kind a
device is, and costs one read where sysfs takes hundreds.  Numbers are from linux/rtnetlink.h,
linux/if_link.h, linux/if_addr.h and net/if_arp.h.
"""

import os
import struct

try:
    import _socket as socket  # the C half: `import socket` costs 8 ms more
except ImportError:
    import socket


GETLINK, GETADDR, GETROUTE = 18, 22, 26
IFF_UP, IFF_LOWER_UP = 0x1, 0x10000
ARPHRD_INFINIBAND, ARPHRD_LOOPBACK, ARPHRD_NONE = 32, 772, 65534
SCOPES = {0: "global", 200: "site", 253: "link", 254: "host"}
KINDS = {
    "bridge": "bridge", "openvswitch": "bridge", "veth": "veth", "bond": "bond", "team": "bond",
    "vlan": "vlan", "macvlan": "macvlan", "macvtap": "macvlan", "ipvlan": "macvlan", "ipvtap": "macvlan",
    "tun": "tunnel", "gre": "tunnel", "gretap": "tunnel", "ip6gre": "tunnel", "ip6gretap": "tunnel",
    "ipip": "tunnel", "sit": "tunnel", "ip6tnl": "tunnel", "vxlan": "tunnel", "geneve": "tunnel",
    "wireguard": "tunnel", "vti": "tunnel", "vti6": "tunnel", "xfrm": "tunnel", "ipoib": "infiniband",
}  # fmt: skip
SETTINGS = ("rp_filter", "arp_ignore", "arp_announce")
MOST_ROUTES = 1000
MOST_BONDS = 64
MOST_BYTES = 8 << 20


def dump(kind, body):
    """Yield (message body) of one rtnetlink dump."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    try:
        sock.settimeout(2.0)
        sock.send(struct.pack("=IHHII", 16 + len(body), kind, 0x301, 1, 0) + body)
        total = 0
        while total < MOST_BYTES:
            data = sock.recv(1 << 18)
            total += len(data)
            offset = 0
            while offset + 16 <= len(data):
                length, what = struct.unpack_from("=IH", data, offset)
                if what == 3:  # NLMSG_DONE
                    return
                if what == 2:  # NLMSG_ERROR
                    code = -struct.unpack_from("=i", data, offset + 16)[0]
                    raise OSError(code, os.strerror(code))
                if length < 16:
                    return
                yield data[offset + 16 : offset + length]
                offset += (length + 3) & ~3
    finally:
        sock.close()


def attributes(data, offset):
    """Attribute number -> its bytes."""
    found = {}
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def text(data):
    return data.split(b"\0")[0].decode("utf-8", "backslashreplace")


def number(data):
    return struct.unpack("=I", data[:4])[0]


def address(family, data):
    return socket.inet_ntop(family, data)


def read(path):
    """A small file's text, "" where it cannot be read (as sysfs answers for links without a speed)."""
    try:
        with open(path, "rb") as file:
            return file.read(16384).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def links():
    """Interface facts by index, without addresses."""
    found = {}
    # Without SKIP_STATS (8) a card with 128 virtual functions answers tens of kilobytes.
    body = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + struct.pack("=HHI", 8, 29, 8)
    for data in dump(GETLINK, body):
        _, arp_type, index, flags, _ = struct.unpack_from("=BxHiII", data)
        attrs = attributes(data, 16)
        info = attributes(attrs.get(18, b""), 0)
        mac = attrs.get(1, b"")
        found[index] = {
            "name": text(attrs.get(3, b"")),
            "index": index,
            "is_up": bool(flags & IFF_UP),
            "has_carrier": bool(flags & IFF_LOWER_UP),
            "mtu_bytes": number(attrs[4]) if 4 in attrs else 0,
            "mac": ":".join("%02x" % b for b in bytearray(mac)) if any(bytearray(mac)) else "",
            "master": number(attrs[10]) if 10 in attrs else 0,
            "arp_type": arp_type,
            "info": text(info.get(1, b"")),
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
        shown = address(family, raw)
        name = SCOPES.get(scope, "global")
        if shown.startswith("169.254."):
            name = "link"  # RFC 3927, whatever scope it was given
        elif shown.startswith("127."):
            name = "host"
        found[index]["addresses"].append(
            {
                "address": shown,
                "prefix_length": length,
                "family": "inet" if family == socket.AF_INET else "inet6",
                "scope": name,
            }
        )


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
    """Whether a real device stands behind a link; a bond's or VLAN's lower links count if all are real."""
    if os.path.exists("%s/%s/device" % (base, name)):
        return True
    if not deep:
        return False
    try:
        lower = [entry[6:] for entry in os.listdir("%s/%s" % (base, name)) if entry.startswith("lower_")]
    except OSError:
        return False
    return bool(lower) and all(has_device(base, low, deep - 1) for low in lower)


def add_hardware(found, root):
    """Kind, speed, duplex, driver and settings, from sysfs where it shows this namespace's links."""
    base = root + "/sys/class/net"
    conf = root + "/proc/sys/net/ipv4/conf"
    everywhere = {setting: read("%s/all/%s" % (conf, setting)) for setting in SETTINGS}
    for link in found.values():
        name = link["name"]
        # In a namespace with the host's /sys a like-named link may be another one.
        same = read("%s/%s/ifindex" % (base, name)) == str(link["index"])
        device = same and os.path.exists("%s/%s/device" % (base, name))
        link["kind"] = kind_of(link, device)
        link["speed_gbit_s"] = None
        # veth and tun claim 10 Gbit/s; a bridge has no rate of its own.
        if same and link["kind"] not in ("bridge", "veth", "tunnel") and has_device(base, name):
            speed = read("%s/%s/speed" % (base, name))
            if speed.isdigit() and 0 < int(speed) < 100000000:
                link["speed_gbit_s"] = int(speed) / 1000.0
        try:
            link["driver"] = (
                os.path.basename(os.readlink("%s/%s/device/driver" % (base, name))) if device else ""
            )
        except OSError:
            link["driver"] = ""
        link["duplex"] = read("%s/%s/duplex" % (base, name)) if same else ""
        for setting in SETTINGS:
            own = read("%s/%s/%s" % (conf, name, setting))
            # The kernel uses the larger of the two (Documentation/networking/ip-sysctl).
            told = [int(v) for v in (own, everywhere[setting]) if v.isdigit()]
            if told or setting == "rp_filter":
                link[setting] = max(told or [0])
        master = found.get(link["master"])
        link["master"] = master["name"] if master else ""


def interfaces(root):
    found = links()
    add_addresses(found)
    add_hardware(found, root)
    shown = []
    for index in sorted(found):
        link = found[index]
        del link["arp_type"], link["info"]
        shown.append(link)
    return shown


def next_hops(family, attrs):
    """(interface index, gateway) of a route, one or several."""
    if 9 not in attrs:
        gateway = attrs.get(5)
        return [(number(attrs[4]) if 4 in attrs else 0, address(family, gateway) if gateway else "")]
    hops, data, offset = [], attrs[9], 0
    while offset + 8 <= len(data):
        length, _, _, index = struct.unpack_from("=HBBi", data, offset)
        if length < 8:
            break
        gateway = attributes(data[offset : offset + length], 8).get(5)
        hops.append((index, address(family, gateway) if gateway else ""))
        offset += (length + 3) & ~3
    return hops


def routes(names):
    """Unicast routes of the main table; defaults are kept whatever the number."""
    found, defaults = [], []
    for family in (socket.AF_INET, socket.AF_INET6):
        for data in dump(GETROUTE, struct.pack("=BBBBBBBBI", family, 0, 0, 0, 0, 0, 0, 0, 0)):
            got, length, _, _, table, _, _, kind, _ = struct.unpack_from("=BBBBBBBBI", data)
            attrs = attributes(data, 12)
            if got != family or kind != 1 or (number(attrs[15]) if 15 in attrs else table) != 254:
                continue
            where = "%s/%d" % (address(family, attrs[1]), length) if 1 in attrs else "default"
            for index, gateway in next_hops(family, attrs):
                route = {
                    "destination": where,
                    "interface": names.get(index, ""),
                    "gateway": gateway,
                    "source": address(family, attrs[7]) if 7 in attrs else "",
                    "metric": number(attrs[6]) if 6 in attrs else 0,
                }
                (found if 1 in attrs else defaults).append(route)
    return defaults[:MOST_ROUTES] + found[:MOST_ROUTES]


def bond(name, told):
    """One file of /proc/net/bonding: the bond's own lines, then some for each slave."""
    found = {"name": name, "mode": "", "hash_policy": "", "slaves": [], "down": []}
    for line in told.splitlines():
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
    try:
        names = sorted(os.listdir(folder))[:MOST_BONDS]
    except OSError:
        return []
    return [bond(name, read("%s/%s" % (folder, name))) for name in names]


def whole(path):
    """The last number of a file, as of tcp_rmem's three; 0 where there is none."""
    last = (read(path).split() or [""])[-1]
    return int(last) if last.isdigit() else 0


def socket_limits(root):
    base = root + "/proc/sys/net"
    if not os.path.isdir(base):
        raise OSError(2, "/proc/sys/net is not there")
    return {
        "rmem_max_bytes": whole(base + "/core/rmem_max"),
        "wmem_max_bytes": whole(base + "/core/wmem_max"),
        "tcp_rmem_max_bytes": whole(base + "/ipv4/tcp_rmem"),
        "tcp_wmem_max_bytes": whole(base + "/ipv4/tcp_wmem"),
        "somaxconn": whole(base + "/core/somaxconn"),
        "conntrack_count": whole(base + "/netfilter/nf_conntrack_count"),
        "conntrack_max": whole(base + "/netfilter/nf_conntrack_max"),
    }


def questions(request, root):
    names = {}

    def ask_interfaces():
        found = interfaces(root)
        names.update((link["index"], link["name"]) for link in found)
        return found

    yield "interfaces", ask_interfaces
    yield "routes", lambda: routes(names)
    yield "bonds", lambda: bonds(root)
    yield "socket_limits", lambda: socket_limits(root)
