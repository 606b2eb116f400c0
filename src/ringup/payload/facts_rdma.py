"""
RDMA devices and their ports, from sysfs (Documentation/ABI/stable/sysfs-class-infiniband).

No verbs call is made and no tool is needed; an ordinary user may read all of it.
"""

import os
import re

MOST_DEVICES = 128
MOST_PORTS = 16
MOST_GIDS = 256
UNSET = ("0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000", "")


def read(path):
    """A small file's text, "" where it cannot be read (as entries of a GID table that are not set)."""
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def listed(path):
    try:
        return os.listdir(path)
    except OSError:
        return []


def natural(name):
    """mlx5_2 before mlx5_10: the order in which the kernel numbered them, and libibverbs lists them."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split("([0-9]+)", name) if p]


def after_colon(text):
    """ "4: ACTIVE" -> "ACTIVE"."""
    return text.split(":")[-1].strip()


def shortest(gid):
    """A GID as ipaddress writes it: an IPv4 address mapped, zeros left out."""
    import ipaddress

    address = ipaddress.IPv6Address(gid)
    return "::ffff:%s" % address.ipv4_mapped if address.ipv4_mapped else str(address)


def gids(port, roce):
    """The entries that are set; of an InfiniBand port the first alone is used."""
    found = []
    for number in sorted((int(n) for n in listed(port + "/gids") if n.isdigit()))[: MOST_GIDS if roce else 1]:
        gid = read("%s/gids/%d" % (port, number))
        if gid in UNSET:
            continue
        found.append(
            {
                "index": number,
                "gid": shortest(gid),
                "kind": read("%s/gid_attrs/types/%d" % (port, number)),
                "netdev": read("%s/gid_attrs/ndevs/%d" % (port, number)),
            }
        )
    return found


def netdev(device, number, table):
    """The interface above a port: as its first GID names it, else the device's own for this port."""
    # Later entries may be of VLANs.
    if table and table[0]["netdev"]:
        return table[0]["netdev"]
    for name in sorted(listed(device + "/device/net")):
        own = read("%s/device/net/%s/dev_port" % (device, name))
        shared = read("%s/device/net/%s/dev_id" % (device, name))
        told = int(own) if own.isdigit() and own != "0" else int(shared, 16) if shared else 0
        if told == number - 1:
            return name
    return ""


def can_open(device, root):
    """Whether the character device libibverbs opens is here and ours to open; a container may lack it."""
    names = listed(device + "/device/infiniband_verbs")
    return not names or any(os.access("%s/dev/infiniband/%s" % (root, n), os.R_OK | os.W_OK) for n in names)


def ports_of(base, name, root):
    device = "%s/%s" % (base, name)
    try:
        bus = os.path.basename(os.path.realpath(device + "/device"))
    except OSError:
        bus = ""
    bus = bus.lower() if re.match(r"^[0-9a-fA-F]+:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$", bus) else ""
    guid = read(device + "/sys_image_guid").replace(":", "").lower()
    opened = can_open(device, root)
    found = []
    for number in sorted((int(n) for n in listed(device + "/ports") if n.isdigit()))[:MOST_PORTS]:
        port = "%s/ports/%d" % (device, number)
        layer = read(port + "/link_layer")
        table = gids(port, layer == "Ethernet")
        rate = re.match(r"([0-9.]+) Gb/sec", read(port + "/rate"))
        lid = read(port + "/lid")
        found.append(
            {
                "device": name,
                "number": number,
                "state": after_colon(read(port + "/state")),
                "physical_state": after_colon(read(port + "/phys_state")),
                "link_layer": layer,
                "rate_gbit_s": float(rate.group(1)) if rate else None,
                "netdev": netdev(device, number, table),
                "lid": int(lid, 16) if re.match("^0x[0-9a-fA-F]+$", lid) else 0,
                "bus_id": bus,
                "guid": guid,
                "gids": table,
                "can_open": opened,
            }
        )
    return found


def rdma_ports(root):
    base = root + "/sys/class/infiniband"
    if not os.path.isdir(root + "/sys/class"):
        raise OSError(2, "/sys is not mounted")
    names = sorted(listed(base), key=natural)
    return [port for name in names[:MOST_DEVICES] for port in ports_of(base, name, root)]


def questions(request, root):
    yield "rdma_ports", lambda: rdma_ports(root)
