"""
RDMA devices and their ports, from sysfs (Documentation/ABI/stable/sysfs-class-infiniband), and libibverbs.

Needs no verbs call and no tool; an ordinary user may read everything. qos/trust and tc/N/traffic_class belong
to NVIDIA's driver package (MLNX_OFED, DOCA) and are absent elsewhere.
"""

import os
import re

from ringup.agent.proc.files import integer, listed, numbered, text

MOST_DEVICES = 128
MOST_PORTS = 16
MOST_GIDS = 256
MOST_PKEYS = 32
MODULES = ("ib_core", "ib_uverbs", "rdma_ucm", "mlx5_core", "mlx5_ib", "efa", "irdma", "bnxt_re")
LIBRARY = "libibverbs.so.1"
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
PCI = r"^[0-9a-fA-F]+:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$"
UNSET = ("0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000", "")


def natural(name):
    """mlx5_2 before mlx5_10: the order in which the kernel numbers and libibverbs lists them."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split("([0-9]+)", name) if p]


def after_colon(shown):
    """ "4: ACTIVE" -> "ACTIVE"."""
    return shown.split(":")[-1].strip()


def shortest(gid):
    """A GID as ipaddress writes it: a mapped IPv4 address, zeros left out."""
    import ipaddress

    address = ipaddress.IPv6Address(gid)
    return "::ffff:%s" % address.ipv4_mapped if address.ipv4_mapped else str(address)


def gids(port, roce):
    """The non-empty entries; for an InfiniBand port only the first one."""
    found = []
    for number in numbered(port + "/gids")[: MOST_GIDS if roce else 1]:
        gid = text("%s/gids/%d" % (port, number))
        if gid in UNSET:
            continue
        kind = text("%s/gid_attrs/types/%d" % (port, number))
        above = text("%s/gid_attrs/ndevs/%d" % (port, number))
        found.append({"index": number, "gid": shortest(gid), "kind": kind, "netdev": above})
    return found


def netdev(device, number, table):
    """The interface of a port: from its first GID, else the device's interface for this port."""
    # Later entries may belong to VLANs.
    if table and table[0]["netdev"]:
        return table[0]["netdev"]
    for name in listed(device + "/device/net"):
        own = text("%s/device/net/%s/dev_port" % (device, name))
        shared = text("%s/device/net/%s/dev_id" % (device, name))
        port = int(own) if own.isdigit() and own != "0" else int(shared, 16) if shared else 0
        if port == number - 1:
            return name
    return ""


def can_open(device, root):
    """Whether we may open the character device of libibverbs; a container may lack it."""
    names = listed(device + "/device/infiniband_verbs")
    return not names or any(os.access("%s/dev/infiniband/%s" % (root, n), os.R_OK | os.W_OK) for n in names)


def pkeys(port):
    """Partition keys by index, without the unused rest of the table."""
    table = [integer(text("%s/pkeys/%d" % (port, n)), 16) for n in range(MOST_PKEYS)]
    while len(table) > 1 and not table[-1]:
        table.pop()
    return table if os.path.isdir(port + "/pkeys") else []


def traffic_class(device, number):
    """ "Global tclass=106" or a bare number; None if unset or unsupported."""
    match = re.search(r"(?:^|tclass=)(\d+)", text("%s/tc/%d/traffic_class" % (device, number)))
    return int(match.group(1)) if match else None


def dcb_settings(data):
    """
    (PFC's bitmap or None, whether DSCP sorts packets) from an answer to DCB_CMD_IEEE_GET.

    struct ieee_pfc begins with pfc_cap and pfc_en; an entry of the APP table is selector, priority,
    protocol, and selector 5 is DSCP (linux/dcbnl.h).
    """
    from ringup.agent.proc.netlink import nested  # only where there is a RoCE port

    pfc, dscp = None, False
    for kind, ieee in nested(data, 4):
        for inner, value in nested(ieee) if kind == 13 else ():
            if inner == 2 and len(value) >= 2:
                pfc = bytearray(value)[1]
            elif inner == 3:
                dscp = any(bytearray(app)[:1] == b"\x05" for _, app in nested(value))
    return pfc, dscp


def dcb(netdev):
    """The same for an interface, by RTM_GETDCB, which an ordinary user may send (net/dcb/dcbnl.c)."""
    import struct

    from ringup.agent.proc.netlink import dump

    name = netdev.encode() + b"\0"
    body = struct.pack("=BBHHH", 0, 21, 0, 4 + len(name), 1) + name + b"\0" * (-len(name) % 4)
    try:
        return dcb_settings(next(dump(78, body, 1)))
    except (OSError, StopIteration):
        return None, False


def ports_of(base, name, root):
    device = "%s/%s" % (base, name)
    bus = os.path.basename(os.path.realpath(device + "/device"))
    driver = os.path.realpath(device + "/device/driver")
    shared = {
        "device": name,
        "can_open": can_open(device, root),
        "bus_id": bus.lower() if re.match(PCI, bus) else "",
        "guid": text(device + "/sys_image_guid").replace(":", "").lower(),
        "driver": os.path.basename(driver) if os.path.isdir(driver) else "",
        "firmware": text(device + "/fw_ver"),
        "hca_type": text(device + "/hca_type"),
        "board_id": text(device + "/board_id"),
    }
    found = []
    for number in numbered(device + "/ports")[:MOST_PORTS]:
        port = "%s/ports/%d" % (device, number)
        layer = text(port + "/link_layer")
        table = gids(port, layer == "Ethernet")
        rate = re.match(r"([0-9.]+) Gb/sec(?: \((\d+)X)?", text(port + "/rate"))
        above = netdev(device, number, table)
        pfc, dscp = dcb(above) if above and layer == "Ethernet" and not root else (None, False)
        trust = text("%s/sys/class/net/%s/qos/trust" % (root, above)) if above else ""
        own = {
            "number": number,
            "state": after_colon(text(port + "/state")),
            "physical_state": after_colon(text(port + "/phys_state")),
            "link_layer": layer,
            "rate_gbit_s": float(rate.group(1)) if rate else None,
            "width": int(rate.group(2) or 0) if rate else 0,
            "netdev": above,
            "sm_lid": integer(text(port + "/sm_lid"), 16),
            "pkeys": pkeys(port) if layer == "InfiniBand" else [],
            "gids": table,
            "traffic_class": traffic_class(device, number),
            "trust": trust or ("dscp" if dscp else ""),
            "pfc": pfc,
        }
        found.append({**shared, **own})
    return found


def rdma_ports(root):
    base = root + "/sys/class/infiniband"
    if not os.path.isdir(root + "/sys/class"):
        raise OSError(2, "/sys is not mounted")
    names = sorted(listed(base), key=natural)
    return [port for name in names[:MOST_DEVICES] for port in ports_of(base, name, root)]


def loaded(names):
    """(Path of the first of these libraries that the dynamic loader finds, its error text if none)."""
    import _ctypes  # only where there is a device

    error = ""
    for name in names:
        try:
            _ctypes.dlopen(name, os.RTLD_NOW)
        except OSError as failure:
            error = error or str(failure)
            continue
        match = re.search(r"(?<!\S)(/\S*/libibverbs\.so\S*)", text("/proc/self/maps", 1 << 24))
        return match.group(1) if match else name, ""
    return "", error


def beside(pythons):
    """The library folder of an environment (conda): its interpreter searches it first."""
    places = [os.path.dirname(os.path.dirname(os.path.realpath(p))) for p in pythons if p and "/" in p]
    return [name for name in ("%s/lib/%s" % (place, LIBRARY) for place in places) if os.path.exists(name)]


def library(request, root):
    if root:
        names = ["%s%s/%s" % (root, folder, LIBRARY) for folder in LIBRARY_FOLDERS]
        there = [name for name in names if os.path.exists(name)]
        return (there[0], "") if there else ("", LIBRARY + ": cannot open shared object file")
    pythons = [request.get(name) for name in ("python", "default_python", "runner")]
    return loaded([LIBRARY] + beside(pythons))


def providers(path):
    """Drivers of the library, in its folder or one folder below (rdma-core)."""
    folder = os.path.dirname(path)
    found = [re.match(r"lib(\w+)-rdmav\d+\.so$", n) for n in listed(folder + "/libibverbs") + listed(folder)]
    return sorted({match.group(1) for match in found if match})


def verbs(request, root):
    bound = [n for n in listed(root + "/sys/bus/pci/drivers/mlx5_core") if re.match(PCI, n)]
    if not bound and not listed(root + "/sys/class/infiniband"):
        return {}
    path, error = library(request, root)
    return {
        "library": path,
        "error": error,
        "providers": providers(path) if path else [],
        "modules": [name for name in MODULES if os.path.isdir("%s/sys/module/%s" % (root, name))],
        "has_char_devices": any(n.startswith("uverbs") for n in listed(root + "/sys/class/infiniband_verbs")),
        "bound": bound[:MOST_DEVICES],
    }


def questions(request, root):
    yield "rdma_ports", lambda: rdma_ports(root)
    yield "verbs", lambda: verbs(request, root)
