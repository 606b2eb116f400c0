"""
Error counters of interfaces, RDMA ports and TCP: read with the node's facts, and again after the pair tests.

From sysfs (Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-net-statistics) and
/proc/net/netstat.
"""

import _socket as socket  # the C half: `import socket` costs 8 ms more
import os
import time

from ringup.agent.proc.files import listed, numbered, numbers, paired, text


INTERFACE = (
    "statistics/rx_errors", "statistics/rx_crc_errors", "statistics/rx_missed_errors",
    "statistics/tx_errors", "statistics/tx_carrier_errors", "carrier_changes",
)  # fmt: skip
RDMA = (
    "counters/link_downed", "counters/link_error_recovery", "counters/symbol_error",
    "counters/port_rcv_errors", "counters/port_rcv_remote_physical_errors",
    "counters/local_link_integrity_errors", "counters/excessive_buffer_overrun_errors",
    "counters/port_xmit_discards",
    "hw_counters/local_ack_timeout_err", "hw_counters/packet_seq_err", "hw_counters/implied_nak_seq_err",
    "hw_counters/rnr_nak_retry_err", "hw_counters/req_transport_retries_exceeded",
    "hw_counters/roce_slow_restart",
    "hw_counters/rx_drops", "hw_counters/retrans_timeout_events", "hw_counters/unresponsive_remote_events",
)  # fmt: skip
BUS = (
    ("fatal_errors", "aer_dev_fatal", "TOTAL_ERR_FATAL"),
    ("nonfatal_errors", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    ("correctable_errors", "aer_dev_correctable", "TOTAL_ERR_COR"),
)
NO_CARD = ("lo", "lxc", "veth", "docker", "br-", "virbr", "cni", "cali", "flannel", "tap")
MOST = 64


def files(of, folder, names):
    """Totals above 0, by the last part of a file's name."""
    texts = [(name.split("/")[-1], text("%s/%s" % (folder, name))) for name in names]
    # A counter that the device does not support may read as all ones, which has 20 digits.
    totals = {name: int(text) for name, text in texts if text.isdecimal() and len(text) < 19}
    return now(of, totals)


def now(of, totals):
    return {"of": of, "at_s": time.monotonic(), "totals": {n: total for n, total in totals.items() if total}}


def is_ours(name, folder):
    try:
        return text(folder + "/ifindex") == str(socket.if_nametoindex(name))
    except OSError:
        return False


def bus_errors(folder):
    """AER counts, None without any.  Unsupported requests are left out, because mere probing causes them."""
    found = {}
    for name, file, last in BUS:
        counted = numbers("%s/%s" % (folder, file), (last, "UnsupReq"))
        harmless = counted.get("UnsupReq", 0) if name == "nonfatal_errors" else 0
        found[name] = max(0, counted[last] - harmless) if last in counted else None
    return found


def all_counters(root):
    # Processes ended for memory, and pages read back from swap.
    found = [now("memory", numbers(root + "/proc/vmstat", ("oom_kill", "pswpin")))]
    base = root + "/sys/class/net"
    names = [name for name in listed(base) if not name.startswith(NO_CARD)]
    # Physical NICs first: a host of containers has hundreds of other interfaces.
    names.sort(key=lambda name: not os.path.exists("%s/%s/device" % (base, name)))
    for name in names[:MOST]:
        if root or is_ours(name, "%s/%s" % (base, name)):
            found.append(files("interface:" + name, "%s/%s" % (base, name), INTERFACE))
    base = root + "/sys/class/infiniband"
    for device in listed(base)[:MOST]:
        for port in numbered("%s/%s/ports" % (base, device))[:4]:
            folder = "%s/%s/ports/%d" % (base, device, port)
            found.append(files("rdma:%s:%d" % (device, port), folder, RDMA))
    cards = [os.path.basename(os.path.realpath("%s/%s/device" % (base, n))) for n in listed(base)]
    for bus in sorted(set(cards + listed(root + "/proc/driver/nvidia/gpus")))[:MOST]:
        folder = "%s/sys/bus/pci/devices/%s" % (root, bus.lower())
        if os.path.exists(folder + "/aer_dev_fatal"):
            found.append(now("pci:" + bus.lower(), bus_errors(folder)))
    # the application did not accept in time
    dropped = paired(root + "/proc/net/netstat", "TcpExt:").get("ListenOverflows")
    return found if dropped is None else [*found, now("tcp", {"ListenOverflows": dropped})]


def questions(request, root):
    yield "counters", lambda: all_counters(root)
