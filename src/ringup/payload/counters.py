"""
Error counters of interfaces, RDMA ports and TCP: read when a node is asked, and again after the pair tests.

A part of both programs: it defines nothing but what begins with `count`, and `questions`.  From sysfs
(Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-net-statistics) and /proc/net/netstat.
"""

import os
import time

try:
    import _socket as count_socket  # the C half: `import socket` costs 8 ms more
except ImportError:
    import socket as count_socket


COUNT_INTERFACE = (
    "statistics/rx_errors", "statistics/rx_crc_errors", "statistics/rx_missed_errors",
    "statistics/tx_errors", "statistics/tx_carrier_errors", "carrier_changes",
)  # fmt: skip
COUNT_RDMA = (
    "counters/link_downed", "counters/link_error_recovery", "counters/symbol_error",
    "counters/port_rcv_errors", "counters/port_rcv_remote_physical_errors",
    "counters/local_link_integrity_errors", "counters/excessive_buffer_overrun_errors",
    "counters/port_xmit_discards",
    "hw_counters/local_ack_timeout_err", "hw_counters/packet_seq_err", "hw_counters/implied_nak_seq_err",
    "hw_counters/rnr_nak_retry_err", "hw_counters/req_transport_retries_exceeded",
    "hw_counters/roce_slow_restart",
    "hw_counters/rx_drops", "hw_counters/retrans_timeout_events", "hw_counters/unresponsive_remote_events",
)  # fmt: skip
COUNT_BUS = (
    ("fatal_errors", "aer_dev_fatal", "TOTAL_ERR_FATAL"),
    ("nonfatal_errors", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    ("correctable_errors", "aer_dev_correctable", "TOTAL_ERR_COR"),
)
COUNT_NO_CARD = ("lo", "lxc", "veth", "docker", "br-", "virbr", "cni", "cali", "flannel", "tap")
COUNT_MOST = 64


def count_read(path):
    try:
        with open(path, "rb") as file:
            return file.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def count_listed(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def count_files(of, folder, names):
    """Totals above 0, by the last part of a file's name."""
    texts = [(name.split("/")[-1], count_read("%s/%s" % (folder, name))) for name in names]
    # What a device does not count may be all ones, which is 20 digits.
    totals = {name: int(text) for name, text in texts if text.isdecimal() and len(text) < 19 and int(text)}
    return {"of": of, "at_s": time.monotonic(), "totals": totals}


def count_is_ours(name, folder):
    """Whether sysfs shows this namespace's link of that name."""
    try:
        return count_read(folder + "/ifindex") == str(count_socket.if_nametoindex(name))
    except OSError:
        return False


def count_tcp(root):
    """Connections that were dropped because nobody accepted them in time."""
    lines = [line.split() for line in count_read(root + "/proc/net/netstat").splitlines()]
    for names, values in zip(lines[::2], lines[1::2]):
        if names[0] == "TcpExt:" and "ListenOverflows" in names:
            total = int(values[names.index("ListenOverflows")])
            totals = {"ListenOverflows": total} if total else {}
            return {"of": "tcp", "at_s": time.monotonic(), "totals": totals}
    return None


def count_memory(root):
    """Processes ended for memory, and pages read back from swap (/proc/vmstat)."""
    lines = [line.split() for line in count_read(root + "/proc/vmstat").splitlines()]
    totals = {
        w[0]: int(w[1]) for w in lines if len(w) == 2 and w[0] in ("oom_kill", "pswpin") and w[1] != "0"
    }
    return {"of": "memory", "at_s": time.monotonic(), "totals": totals}


def count_bus(bus, folder):
    """Bus errors of a PCI function, without unsupported requests, which mere probing causes."""
    totals = {}
    for name, file, last in COUNT_BUS:
        lines = [line.split() for line in count_read("%s/%s" % (folder, file)).splitlines()]
        counted = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
        total = counted.get(last, 0) - (counted.get("UnsupReq", 0) if name == "nonfatal_errors" else 0)
        if total > 0:
            totals[name] = total
    return {"of": "pci:" + bus, "at_s": time.monotonic(), "totals": totals}


def count_functions(root):
    """PCI addresses of RDMA devices and NVIDIA GPUs."""
    base = root + "/sys/class/infiniband"
    found = [os.path.basename(os.path.realpath("%s/%s/device" % (base, n))) for n in count_listed(base)]
    return sorted(set(found + count_listed(root + "/proc/driver/nvidia/gpus")))[:COUNT_MOST]


def count_all(root):
    found = [count_memory(root)]
    base = root + "/sys/class/net"
    names = [name for name in count_listed(base) if not name.startswith(COUNT_NO_CARD)]
    # Cards first: a host of containers has hundreds of other interfaces.
    names.sort(key=lambda name: not os.path.exists("%s/%s/device" % (base, name)))
    for name in names[:COUNT_MOST]:
        if root or count_is_ours(name, "%s/%s" % (base, name)):
            found.append(count_files("interface:" + name, "%s/%s" % (base, name), COUNT_INTERFACE))
    base = root + "/sys/class/infiniband"
    for device in count_listed(base)[:COUNT_MOST]:
        for port in [p for p in count_listed("%s/%s/ports" % (base, device)) if p.isdigit()][:4]:
            folder = "%s/%s/ports/%s" % (base, device, port)
            found.append(count_files("rdma:%s:%s" % (device, port), folder, COUNT_RDMA))
    for bus in count_functions(root):
        folder = "%s/sys/bus/pci/devices/%s" % (root, bus.lower())
        if os.path.exists(folder + "/aer_dev_fatal"):
            found.append(count_bus(bus.lower(), folder))
    tcp = count_tcp(root)
    return found + ([tcp] if tcp else [])


def questions(request, root):
    yield "counters", lambda: count_all(root)
