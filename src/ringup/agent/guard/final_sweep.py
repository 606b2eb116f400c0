"""`final_sweep.py RUN PORT WAIT_S`: waits for the run's guards, ends its tagged processes, prints JSON."""

import json
import os
import signal
import sys
import time

from ringup.agent.guard.tree import GUARD, kill_all, members, send
from ringup.agent.proc.files import pause
from ringup.agent.proc.process import command, descriptors, owner, table, words
from ringup.agent.proc.sockets import LISTENING, tcp
from ringup.agent.proc.sockets import port as socket_port


def guards(run_id):
    """The run's living guards: pid -> start time."""
    label = "%s:%s" % (GUARD, run_id)
    others = {pid: started for pid, (_, started) in table().items() if pid != os.getpid()}
    return {p: started for p, started in others.items() if label in words(p) and owner(p) == os.geteuid()}


def holder(inodes):
    """[pid, command] of a process of our user that holds one of these sockets, or []."""
    wanted = {"socket:[%s]" % inode for inode in inodes}
    pid = next((pid for pid in table() if wanted and wanted.intersection(descriptors(pid))), 0)
    return [pid, command(pid)] if pid else []


def sweep(run_id, port, wait_s):
    """End and list the remaining processes of a run; its guards get `wait_s` to do so first."""
    until = time.monotonic() + wait_s
    while guards(run_id) and time.monotonic() < until:
        pause(0.05)
    killed, left = kill_all(lambda: members(run_id), 3.0)
    for pid, started in guards(run_id).items():
        send(pid, started, signal.SIGTERM)
    sockets = [one for one in tcp(LISTENING) if port and socket_port(one[0]) == port]
    return {
        "killed": list(killed.items()),
        "left": list(left.items()),
        "port": port,
        "port_held": bool(sockets),
        "port_holder": holder({inode for _, _, _, inode in sockets}),
    }


if __name__ == "__main__":
    print(json.dumps(sweep(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))), flush=True)
