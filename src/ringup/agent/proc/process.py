"""Processes from /proc.  `root` is a prefix of /proc: "" except in tests."""

import os

from ringup.agent.proc.files import integer, link, numbered, pause, read, text

HZ = float(os.sysconf("SC_CLK_TCK"))
LONGEST_ENVIRON_BYTES = 8 << 20
LONGEST_COMMAND = 300
EXEC_TRIES = 200  # reads a millisecond apart: under load an exec waits for a CPU


def name_and_fields(pid, root):
    """The name and later fields of /proc/PID/stat from the state on: parent [1], session [3], start [19]."""
    # The name in parentheses may contain anything, even a parenthesis.
    head, _, tail = read("%s/proc/%s/stat" % (root, pid), 4096).rpartition(b")")
    return head.partition(b"(")[2].decode("utf-8", "replace"), tail.split()


def stat_fields(pid, root=""):
    """The fields without the name."""
    return name_and_fields(pid, root)[1]


def state(pid, root=""):
    """One letter (proc(5)), "" if the process is gone."""
    return (stat_fields(pid, root)[:1] or [b""])[0].decode()


def stat(pid):
    """(parent, start time in clock ticks since boot) of a living process; None if it is gone."""
    fields = stat_fields(pid)
    if len(fields) < 20:
        return None
    # A zombie with several threads has only lost the first one and still runs.
    if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
        return None
    return int(fields[1]), int(fields[19])


def table():
    """Every living process: pid -> (parent, start time)."""
    found = {pid: stat(pid) for pid in numbered("/proc")}
    return {pid: known for pid, known in found.items() if known}


def children_of(parents):
    found = {}
    for pid, parent in parents.items():
        found.setdefault(parent, []).append(pid)
    return found


def family():
    """Every living process: (pid -> (parent, start time), process -> its children)."""
    known = table()
    return known, children_of({pid: parent for pid, (parent, _) in known.items()})


def below(roots, children, spares=lambda pid: False):
    """These processes and all their descendants, without the spared ones and those below them."""
    roots = list(roots)
    found, todo = {}, list(roots)
    for pid in todo:  # the list grows meanwhile
        if pid not in found and (pid in roots or not spares(pid)):
            found[pid] = True
            todo += children.get(pid, ())
    return list(found)


def status(pid, root=""):
    lines = text("%s/proc/%s/status" % (root, pid)).splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def switches(pid, root=""):
    """How often a process has left the CPU, voluntarily or not."""
    known = status(pid, root)
    return sum(integer(known.get(kind + "voluntary_ctxt_switches", "")) for kind in ("", "non"))


def moves(pid, root="", states="D"):
    """The same if its main thread is in one of these states, else None; no signal reaches state D."""
    how = state(pid, root)
    return switches(pid, root) if how and how in states else None


def has_bit(pid, field, bit, root=""):
    """A bit of a hexadecimal field of its status, such as SigIgn and CapEff; False if it is hidden."""
    return bool(integer(status(pid, root).get(field, ""), 16) >> bit & 1)


def cgroups(pid, root=""):
    """Controllers of a hierarchy ("" in version 2) -> the path of a process in it; see cgroups(7)."""
    lines = [line.split(":", 2) for line in text("%s/proc/%s/cgroup" % (root, pid)).splitlines()]
    return {fields[1]: fields[2] for fields in lines if len(fields) > 2}


def owner(pid, root=""):
    try:
        return os.stat("%s/proc/%s" % (root, pid)).st_uid
    except OSError:
        return -1


def words(pid, root=""):
    data = read("%s/proc/%s/cmdline" % (root, pid), 1 << 20).rstrip(b"\0")
    return [word.decode("utf-8", "backslashreplace") for word in data.split(b"\0")] if data else []


def command(pid):
    """A process's command line as text, bounded, printable, without secrets."""
    from ringup.secret_names import shown_words  # imports re, which not every program needs

    data = read("/proc/%d/cmdline" % pid, 4096).strip(b"\0 ") or read("/proc/%d/comm" % pid, 64)
    text = " ".join(shown_words(data.decode("utf-8", "replace").split("\0"))).strip()
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_COMMAND]


def environ(pid, root=""):
    """The initial variables of a process; empty for another user's process."""
    if owner(pid, root) != os.geteuid():
        return {}
    entries = (entry.partition(b"=") for entry in reversed(raw_environ(pid, root).split(b"\0")))
    return {name: value for name, equals, value in entries if equals}  # the first one of a name counts


def raw_environ(pid, root=""):
    """
    The variables as raw bytes.

    While a process executes another program, /proc shows neither its command line nor its variables (Linux
    fs/proc/base.c: env_end is 0).  A member of the run would be missed at that moment, so this function
    waits.  A process without variables has their addresses (env_start, env_end of proc(5)), and keeps them.
    """
    folder = "%s/proc/%s/" % (root, pid)
    place = []
    for _ in range(EXEC_TRIES):
        data = read(folder + "environ", LONGEST_ENVIRON_BYTES)
        # Kernel threads and ending processes have no program.
        if data or not link(folder + "exe"):
            break
        before, place = place, stat_fields(pid, root)[47:49]
        if place == before and b"0" not in place:
            break
        pause(0.001)
    return data


def descriptors(pid, root=""):
    """Open files of a process, as /proc names them, by rising descriptor; empty if that is hidden."""
    try:
        at = os.open("%s/proc/%s/fd" % (root, pid), os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        return [name for name in (link(str(fd), at) for fd in numbered(at)) if name]
    finally:
        os.close(at)


def waited_s(task="self"):
    """
    Seconds a thread (PID or PID/task/TID) was ready to run and had no CPU, since it began.

    From schedstat (Documentation/scheduler/sched-stats.rst), which exists until an ended process is reaped; 0
    if the kernel does not count it, and on macOS.
    """
    return integer((read("/proc/%s/schedstat" % task, 200).split() + [b"0", b"0"])[1]) / 1e9


def waits_s(pid):
    """The same for every thread of a process."""
    return [waited_s("%s/task/%d" % (pid, thread)) for thread in numbered("/proc/%s/task" % pid)]
