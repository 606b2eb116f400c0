"""
Processes that trained, have lost their parent, and show no variables of a job.

A spawned rank shows what its parent began with; the ssh of a start loop is on the launching machine and
keeps the ranks of others alive; a forked rank shows nothing but the GPU it holds.
"""

import os

import facts_processes as processes

GPUS = "/dev/nvidia"
PORTS = (29500, 29400, 23456)
"""Where torch's store, its c10d rendezvous and Kubeflow's meet unless told otherwise."""
REMOTE = ("ssh", "pdsh", "clush", "parallel-ssh", "pssh")
STARTS = (
    "torchrun", "torch.distributed.", "accelerate launch", "accelerate.commands.launch", "deepspeed",
    "colossalai", "llamafactory-cli", "MASTER_ADDR=", "JAX_COORDINATOR_ADDRESS=",
)  # fmt: skip
FORK = "--multiprocessing-fork"
"""How Python's multiprocessing (torch's with it) marks what it has spawned."""
UNSURE = "nothing else tells of a job: it may be meant to go on"


def is_python(words):
    return bool(words) and os.path.basename(words[0]).startswith("python")


def descriptors(pid):
    """Names of what a process has open; nothing where that may not be read."""
    folder = "/proc/%d/fd/" % pid
    found = []
    try:
        for fd in os.listdir(folder):
            try:
                found.append(os.readlink(folder + fd))
            except OSError:
                continue
    except OSError:
        pass
    return found


def gpus(held):
    """The GPUs among them."""
    return sorted({name for name in held if name.startswith(GPUS) and name[len(GPUS) :].isdigit()})


def trains(table, pid, held):
    """Whether a spawned process shows more of a rank than that."""
    env = table.environment(pid)
    return any(name in env for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")) or bool(gpus(held))


def find(table, jobs):
    """pid -> (evidence, doubt) of those of our user whose parent is gone."""
    us = set(table.ancestors(os.getpid()))
    usual = {"socket:[%s]" % i: port for _, port, _, i in processes.listening(table.root) if port in PORTS}
    found = {}
    for pid in table.parents:
        if table.uids[pid] != table.uid or pid in us or pid in jobs or table.parents[pid] == 2:
            continue
        parent = table.parents[pid]
        if parent not in (0, 1) and table.commands.get(parent, "") != "systemd":
            continue
        if processes.fate(table, pid, {pid: ""}).startswith("orphan"):
            said = judged(table, pid, usual)
            if said:
                found[pid] = said
    return found


def judged(table, pid, usual):
    """(evidence, doubt) of one, or None."""
    words = table.words(pid)
    if not words:
        return None
    program, text = os.path.basename(words[0]), " ".join(words[1:])
    if program in REMOTE:
        start = next((name for name in STARTS if name in text), "")
        if start:
            return "%s that started %s" % (program, start.strip(".=")), ""
        return ("%s that started python" % program, UNSURE) if "python" in text else None
    if not is_python(words):
        return None
    held = descriptors(pid)
    if FORK in words:
        return "spawned by a Python process that is gone", "" if trains(table, pid, held) else UNSURE
    spawned = [child for child, above in table.parents.items() if above == pid and FORK in table.words(child)]
    if any(trains(table, child, descriptors(child)) for child in spawned):
        return "a Python process that has spawned ranks", ""
    if gpus(held):
        return "a Python process that holds a GPU", UNSURE
    ports = sorted({usual[name] for name in held if name in usual})
    if ports:
        return "a Python process that listens on port %d" % ports[0], UNSURE
    return None


def listened_to(table, pid, own):
    """Why its output seems to be wanted: a file, an open terminal, a reader that lives; "" when it is not."""
    for fd in (1, 2):
        path = "/proc/%d/fd/%d" % (pid, fd)
        try:
            name, mode = os.readlink(path), os.stat(path).st_mode
        except OSError:
            continue
        if mode & 0o170000 == 0o100000:
            return "its output goes to a file, as of a job that was detached on purpose"
        if name.startswith(("/dev/pts/", "/dev/tty")):
            return "its output goes to a terminal that is open"
        if name.startswith("pipe:"):
            reader = reads(table, name, own)
            if reader:
                return "process %d (%s) reads its output" % (reader, table.commands[reader])
    return ""


def reads(table, pipe, own):
    """A process of ours outside the job that has the pipe open for reading; 0 for none."""
    for pid in table.parents:
        if pid in own or (table.uids[pid] != table.uid and table.uid != 0):
            continue
        folder = "/proc/%d/fd/" % pid
        try:
            numbers = os.listdir(folder)
        except OSError:
            continue
        if any(is_reading(folder + fd, pipe) for fd in numbers):
            return pid
    return 0


def is_reading(path, pipe):
    """Whether a descriptor is that pipe, open for reading alone."""
    try:
        return os.readlink(path) == pipe and not os.lstat(path).st_mode & 0o200
    except OSError:
        return False
