"""Other causes of a hang on this node: memory, disks, network counters; and NCCL's RAS service."""

import contextlib
import glob
import json
import os
import signal
import socket

from ringup.agent.proc.command import Child, wait
from ringup.agent.proc.files import integer, link, numbers, space, text, traffic
from ringup.agent.proc.process import cgroups
from ringup.agent.proc.sockets import LISTENING, tcp
from ringup.agent.proc.sockets import port as socket_port

RAS_ADDRESS = b"localhost:28028"
RAS_S = 3.0
LONGEST_REPORT_BYTES = 2 << 20
FILES_S = 2.0
"""Time limit for files and file systems; a dead file server never answers."""


def bounded(work, limit_s=FILES_S):
    """The items (plain data) that an iterator yields within the limit, in a child process: work may hang."""

    def write_each(write_end):
        with os.fdopen(write_end, "w", 1) as lines:
            for item in work:
                lines.write(json.dumps(item) + "\n")

    # The parent may ignore SIGCHLD; we wait for the child ourselves.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        child = Child(write_each, 2 * LONGEST_REPORT_BYTES)
    except OSError:  # no process is left for us
        return []
    if wait([child], child.began + limit_s):
        child.give_up()
    return [json.loads(line) for line in child.data.split(b"\n")[:-1]]


def interfaces():
    """Interface or RDMA port -> bytes received and sent since it came up, without loopback."""
    found = {name: sum(both) for name, both in traffic().items() if name != "lo"}
    for folder in glob.glob("/sys/class/infiniband/*/ports/*/"):
        device, _, port = folder.split("/")[4:7]
        # port_*_data are in units of four bytes; EFA has rx_bytes and tx_bytes instead.
        words = [integer(text(folder + "counters/port_%s_data" % way, 64)) for way in ("rcv", "xmit")]
        sizes = [integer(text(folder + "hw_counters/%sx_bytes" % way, 64)) for way in "rt"]
        found["%s:%s" % (device, port)] = 4 * sum(words) or sum(sizes)
    return found


def disks(ranks):
    """[path, free bytes, size] of the places the ranks write to: /tmp, /dev/shm and their directories."""
    seen = set()
    folders = {"/tmp": "/tmp", "/dev/shm": "/dev/shm"}
    for one in ranks:
        path = "/proc/%d/cwd" % one["pid"]  # the path of a rank in a container may be another place here
        folders.setdefault(link(path) or "/tmp", path)
    for folder, path in folders.items():
        with contextlib.suppress(OSError):
            known, device = space(path), os.stat(path).st_dev
            if device not in seen:
                seen.add(device)
                yield [folder[:300], known["free_bytes"], known["total_bytes"]]


def node(ranks):
    """The node's own state, as counters since it came up."""
    memory = numbers("/proc/meminfo", ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree"))
    events = numbers("/proc/vmstat", ("pswpin", "pswpout", "oom_kill", "nr_written"))
    group = cgroups(ranks[0]["pid"]).get("", "") if ranks else ""  # the cgroup of the ranks, in version 2
    ended = numbers("/sys/fs/cgroup%s/memory.events" % group, ("oom_kill",))
    return {
        "memory_bytes": memory.get("MemTotal", 0) * 1024,
        "memory_available_bytes": memory.get("MemAvailable", 0) * 1024,
        "swapped_pages": events.get("pswpin", 0) + events.get("pswpout", 0),
        "written_bytes": events.get("nr_written", 0) * os.sysconf("SC_PAGE_SIZE"),
        "oom_kills": events.get("oom_kill", 0),
        "cgroup_oom_kills": ended.get("oom_kill", 0),
        "disks": bounded(disks(ranks))[:16],
        "interfaces": interfaces(),
    }


def ras(environments):
    """NCCL's own report (RAS, 2.24+), from any rank: {"address", "format", "report", "problem"}."""
    asked = [env for env in environments if env.get(b"NCCL_RAS_ENABLE") != b"0"]
    known = [env.get(b"NCCL_RAS_ADDR", RAS_ADDRESS).decode("utf-8", "replace") for env in asked]
    # A closed port refuses a connection, but a firewall may drop it.
    listening = {str(socket_port(own)) for own, _, _, _ in tcp(LISTENING)} if known else ()
    for address in list(dict.fromkeys(known))[:4]:
        host, _, port = address.rpartition(":")
        if port in listening:
            found = {"address": address[:200], "format": "", "report": "", "problem": ""}
            answer = bounded(ask_ras(host, int(port)), 2 * RAS_S)
            found.update(answer[0] if answer else {"problem": "no answer in time"})
            return found
    return None


def ask_ras(host, port):
    """{"format", "report"}: JSON if the server supports it (2.28.7), else text; or {"problem"}."""
    try:
        connection = socket.create_connection((host.strip("[]") or "127.0.0.1", port), RAS_S)
        with connection, connection.makefile("rwb") as lines:

            def ask(words):
                lines.write(words + b"\n")
                lines.flush()
                line = lines.readline(4096)
                if not line.endswith(b"\n"):
                    raise OSError("the process that answers is not NCCL's RAS")
                return line

            ask(b"CLIENT PROTOCOL 2")
            ask(b"TIMEOUT %d" % RAS_S)
            form = "json" if ask(b"SET FORMAT json").startswith(b"OK") else "text"
            lines.write(b"VERBOSE STATUS\n" if form == "text" else b"STATUS\n")
            lines.flush()
            yield {"format": form, "report": lines.read(LONGEST_REPORT_BYTES).decode("utf-8", "replace")}
    except (OSError, ValueError) as error:  # an invalid host name raises another error than OSError
        yield {"problem": getattr(error, "strerror", "") or str(error) or "no answer"}
