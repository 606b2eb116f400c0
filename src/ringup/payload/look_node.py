"""What else may hold a rank up on this node: memory, disks, network counters; and NCCL's own RAS service."""

import json
import os
import select
import signal
import time

import _socket as socket
import guard_tree as tree

RAS_ADDRESS = "localhost:28028"
RAS_S = 3.0
LONGEST_REPORT_BYTES = 2 << 20
FILES_S = 2.0
"""How long files and file systems may take to answer; a dead file server never does."""


def bounded(work, limit_s=FILES_S):
    """
    The items (plain data) that an iterator gives within the limit, made in a child.

    What hangs on a file server's answer hangs there, maybe beyond SIGKILL, and we go on without it.
    """
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # who started us may ignore it; the child is ours to wait for
    read_end, write_end = os.pipe()
    try:
        pid = os.fork()
    except OSError:  # no process left to us
        return []
    if pid == 0:
        try:
            for item in work:
                data = json.dumps(item).encode() + b"\n"
                while data:
                    data = data[os.write(write_end, data) :]
        finally:
            os._exit(0)
    os.close(write_end)
    data, until = b"", time.monotonic() + limit_s
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    while poll.poll(max(0.0, until - time.monotonic()) * 1000):
        piece = os.read(read_end, 65536)
        if not piece:
            break
        data += piece
    os.close(read_end)
    os.kill(pid, signal.SIGKILL)  # ours, and not yet waited for
    os.waitpid(pid, os.WNOHANG)
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def numbers(path, names):
    """`name value` lines of a file of /proc: name -> number."""
    found = {}
    for line in tree.read(path, 1 << 20).decode("ascii", "replace").splitlines():
        fields = line.replace(":", " ").split()
        if len(fields) > 1 and fields[0] in names and fields[1].isdigit():
            found[fields[0]] = int(fields[1])
    return found


def interfaces():
    """Interface -> bytes received and sent since it came up, loopback apart; RDMA ports likewise."""
    found = {}
    for line in tree.read("/proc/net/dev", 1 << 20).decode("utf-8", "replace").splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) > 8 and name.strip() != "lo":
            found[name.strip()] = int(fields[0]) + int(fields[8])
    base = "/sys/class/infiniband"
    for device in sorted(os.listdir(base)) if os.path.isdir(base) else ():
        for port in sorted(os.listdir("%s/%s/ports" % (base, device))):
            words = 0  # the counters are in units of four bytes
            for name in ("port_rcv_data", "port_xmit_data"):
                text = tree.read("%s/%s/ports/%s/counters/%s" % (base, device, port, name), 64).strip()
                words += int(text) if text.isdigit() else 0
            found["%s:%s" % (device, port)] = 4 * words
    return found


def disks(ranks):
    """[path, free bytes, size] where the ranks write: /tmp, /dev/shm and their directories."""
    seen = set()
    folders = {"/tmp": "/tmp", "/dev/shm": "/dev/shm"}
    for one in ranks:
        link = "/proc/%d/cwd" % one["pid"]  # of a rank in a container the name alone may be another place
        try:
            folders.setdefault(os.readlink(link), link)
        except OSError:
            pass
    for folder, path in folders.items():
        try:
            known = os.statvfs(path)
            if os.stat(path).st_dev not in seen:
                seen.add(os.stat(path).st_dev)
                yield [folder[:300], known.f_bavail * known.f_frsize, known.f_blocks * known.f_frsize]
        except OSError:
            pass


def cgroup_kills(ranks):
    """How often the out-of-memory killer has come to the ranks' own control group (v2)."""
    for one in ranks[:1]:
        for line in tree.read("/proc/%d/cgroup" % one["pid"]).decode("utf-8", "replace").splitlines():
            if line.startswith("0::"):
                path = "/sys/fs/cgroup%s/memory.events" % line[3:]
                return numbers(path, ("oom_kill",)).get("oom_kill", 0)
    return 0


def node(ranks):
    """The node's own state, as counters since it came up."""
    memory = numbers("/proc/meminfo", ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree"))
    events = numbers("/proc/vmstat", ("pswpin", "pswpout", "oom_kill", "nr_written"))
    return {
        "memory_bytes": memory.get("MemTotal", 0) * 1024,
        "memory_available_bytes": memory.get("MemAvailable", 0) * 1024,
        "swapped_pages": events.get("pswpin", 0) + events.get("pswpout", 0),
        "written_bytes": events.get("nr_written", 0) * os.sysconf("SC_PAGE_SIZE"),
        "oom_kills": events.get("oom_kill", 0),
        "cgroup_oom_kills": cgroup_kills(ranks),
        "disks": bounded(disks(ranks))[:16],
        "interfaces": interfaces(),
    }


# -- NCCL's RAS ------------------------------------------------------------------------------------


def listens(port):
    """Whether somebody listens there; a connection to nobody is refused, but a filter may swallow it."""
    return bool(tree.listening(port))


def ras(environments):
    """
    NCCL's own report of the job, asked of any rank here (NCCL 2.24+; user guide, "RAS"); None for none.

    {"address": ..., "format": "json"|"text", "report": ..., "problem": ...}
    """
    addresses = []
    for env in environments:
        if env.get(b"NCCL_RAS_ENABLE") != b"0":
            address = env.get(b"NCCL_RAS_ADDR", RAS_ADDRESS.encode()).decode("utf-8", "replace")
            if address not in addresses:
                addresses.append(address)
    for address in addresses[:4]:
        host, _, port = address.rpartition(":")
        if port.isdecimal() and 0 < int(port) < 65536 and listens(int(port)):
            found = {"address": address[:200], "format": "", "report": "", "problem": ""}
            try:
                found["format"], found["report"] = ask_ras(host, int(port))
            except (OSError, ValueError) as error:  # a name that is none is no OSError
                found["problem"] = getattr(error, "strerror", "") or str(error) or "no answer"
            return found
    return None


def ask_ras(host, port):
    """(format, report): JSON where the server knows it (2.28.7), else text.  Raises OSError."""
    host = host.strip("[]") or "127.0.0.1"
    known = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    family, kind, protocol, _, target = known[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.settimeout(RAS_S)
        connection.connect(target)
        lines = Lines(connection)
        lines.ask("CLIENT PROTOCOL 2")
        lines.ask("TIMEOUT %d" % RAS_S)
        form = "json" if lines.ask("SET FORMAT json").startswith("OK") else "text"
        connection.sendall(b"VERBOSE STATUS\n" if form == "text" else b"STATUS\n")
        return form, lines.rest()
    finally:
        connection.close()


class Lines:
    """A conversation in lines, bounded in time and size."""

    def __init__(self, connection):
        self.connection, self.data = connection, b""
        self.until = time.monotonic() + 2 * RAS_S

    def _more(self):
        if time.monotonic() > self.until:
            raise OSError("no answer in time")
        piece = self.connection.recv(65536)
        self.data += piece
        return piece

    def ask(self, words):
        """Send a line; the answer's line."""
        self.connection.sendall(words.encode() + b"\n")
        while b"\n" not in self.data:
            if not self._more() or len(self.data) > 4096:
                raise OSError("it is not NCCL's RAS that answers")
        line, _, self.data = self.data.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def rest(self):
        """Everything up to the end."""
        while len(self.data) < LONGEST_REPORT_BYTES and self._more():
            pass
        return self.data.decode("utf-8", "replace")
