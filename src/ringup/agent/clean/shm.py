"""Files that NCCL, torch and Python's multiprocessing have left in shared memory."""

import time

from ringup.agent.facts import processes
from ringup.agent.guard import tree
from ringup.agent.proc.files import maker

FRESH_S = 60.0
"""The creator of such a new file may not have mapped it yet."""
FILES_S = 8.0


def shared_files(folder, first_namespace):
    """Files of NCCL and torch in shared memory that nobody uses."""
    if not (candidates := tree.own_files(folder)):
        return []
    table = processes.ProcessTable("")
    readable = [pid for pid in table.parents if table.may_read(pid)]
    used, why = tree.used_files(readable, time.monotonic() + FILES_S)
    if not first_namespace:
        why = "seen from inside a container: a process outside may use it"
    found = []
    for path, status in sorted(candidates.items()):
        if (status.st_dev, status.st_ino) in used or maker(path) in table.parents:
            continue
        age_s = max(0.0, time.time() - max(status.st_mtime, status.st_ctime))
        doubt = why
        if any(name.startswith("torch_shm_") for name in table.commands.values()):
            doubt = doubt or "a torch_shm_manager is running"
        if status.st_mode & 0o077:
            doubt = doubt or "other users may have it open"
        if age_s < FRESH_S:
            doubt = doubt or "written less than a minute ago"
        entry = {"path": path, "size_bytes": status.st_blocks * 512, "age_s": age_s, "doubt": doubt}
        found.append((entry, status))
    return found


def remove(files):
    """Unlink proven leftovers; returns the entries that are gone."""
    gone = []
    for entry, status in files:
        try:
            if not entry["doubt"] and tree.remove_file(entry["path"], status):
                gone.append(entry)
        except OSError as error:
            entry["doubt"] = error.strerror or "cannot be removed"
    return gone
