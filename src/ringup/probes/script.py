"""
The one `sh` script a node is asked: the Python program where there is one, else plain commands.

Everything runs in the shell the job gets: after `cd` to its directory and after
`--setup`, which may bring a python3, a PATH or limits of its own.
"""

from __future__ import annotations

import base64
import functools
import shlex
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

PARTS = {
    "system": "facts_system.py",
    "network": "facts_network.py",
    "rdma": "facts_rdma.py",
    "gpu": "facts_gpu.py",
    "pci": "facts_pci.py",
    "counters": "counters.py",
    "names": "facts_names.py",
    "processes": "facts_processes.py",
    "machine": "facts_machine.py",
    "software": "facts_software.py facts_libraries.py facts_nccl.py",
    "spaces": "facts_files.py",
    "work": "facts_files.py",
    "home": "facts_files.py",
}
"""Part of the program -> its sources; see payload/facts.py."""

FIELDS = {
    "system": (
        "hostname", "boot_id", "user", "uid", "kernel", "machine", "cpu_count", "memory_bytes", "limits",
        "ports", "environment", "uptime_s",
    ),
    "network": ("interfaces", "routes", "bonds", "socket_limits"),
    "rdma": ("rdma_ports", "verbs"),
    "counters": ("counters",),
    "gpu": ("gpus", "gpu_links", "gpu_processes", "gpu_driver", "kernel_events"),
    "pci": ("pci", "processor", "virtual_machine", "boot_options"),
    "names": ("own_name", "fqdn", "peer_names", "reverse_lookup_s"),
    "processes": ("listeners", "leftovers", "stuck"),
    "machine": ("container", "memory", "numa", "ptrace_scope", "remove_ipc", "product", "ofed"),
    "software": (
        "interpreter", "torchrun_on_path", "gpu_count", "nccl_libraries", "nccl_plugins", "nccl_answer",
    ),
    "spaces": ("shm", "tmp", "shm_files"),
    "work": ("looks", "chdir", "script", "disks", "revision"),
    "home": ("cache", "nccl_conf"),
}  # fmt: skip
"""Part -> fields of Node it fills."""

LIMITS_S = {
    "system": 3.0,
    "network": 3.0,
    "rdma": 3.0,
    "counters": 3.0,
    "gpu": 8.0,
    "pci": 3.0,
    "names": 6.0,
    "processes": 5.0,
    "machine": 3.0,
    "software": 12.0,
    "spaces": 3.0,
    "work": 7.0,
    "home": 4.0,
}
"""Seconds each part is given on a node; all run at once, and one that waits for the CPU gets twice that."""

WHERE_PRESENT = ("gpu", "pci")
"""Parts for which no process is started on a node that has none of it; see payload/facts.py."""

LOOK_S = 3.0
"""A path that cannot be looked at for so long is on a file server that is down."""
SETUP_LIMIT_S = 20
"""`conda activate` takes half a second on a local disk and several on a busy file server."""

_BOOT = (
    "import os,zlib,binascii as b;"
    "S=zlib.decompress(b.a2b_base64(os.environ.pop('RU_PROGRAM'))).decode().split('\\x1f');"
    "exec(compile(S[1],'facts','exec'),{'__name__':'__main__','PARTS':dict(zip(S[2::2],S[3::2]))})"
)

# Runs the program by the first python that can; 64 says that none could.
_RUN = """
ru_run() {
  RU_PATH=$PATH; export RU_PATH
  for ru_r in "$RU_WANTED" "$RU_DEFAULT" python3 /usr/bin/python3 python /usr/libexec/platform-python; do
    [ -n "$ru_r" ] || continue
    ru_c=$(command -v -- "$ru_r" 2>/dev/null) || continue
    case $ru_c in /*) ;; *) ru_c=$PWD/$ru_c ;; esac
    $RU_LIMIT "$ru_c" -E -S -c "$RU_BOOT" ringup-facts "$ru_c" 2>/dev/null && return 0
  done
  return 64
}
"""

# What a node without python can still say; commands that are missing leave their frame empty.
_PLAIN = """
ru_frame() { printf '\\n\\036%s plain %s\\n' "$RU_TOKEN" "$1"; }
ru_plain() {
  ru_frame hostname; hostname 2>/dev/null || uname -n
  ru_frame boot_id; cat /proc/sys/kernel/random/boot_id 2>/dev/null
  ru_frame user; id -un 2>/dev/null; ru_frame uid; id -u 2>/dev/null
  ru_frame uname; uname -r -m 2>/dev/null
  ru_frame link; ip -d -o link 2>/dev/null || ip -o link 2>/dev/null
  ru_frame addr; ip -o addr 2>/dev/null
  ru_frame route; ip route 2>/dev/null
  ru_frame meminfo; head -n 1 /proc/meminfo 2>/dev/null
  ru_frame nproc; nproc 2>/dev/null
  ru_frame memlock; ulimit -l 2>/dev/null; ru_frame nofile; ulimit -n 2>/dev/null
  ru_frame ports; cat /proc/sys/net/ipv4/ip_local_port_range 2>/dev/null
  ru_frame shm; df -P -k /dev/shm 2>/dev/null; ru_frame tmp; df -P -k /tmp 2>/dev/null
  ru_frame hosts; ru_h=$(hostname 2>/dev/null || uname -n)
  $RU_SHORT getent ahosts "$ru_h" 2>/dev/null; echo "ended $?"
  ru_frame python
  for ru_r in "$RU_WANTED" "$RU_DEFAULT" python3; do [ -n "$ru_r" ] && command -v -- "$ru_r"; done
  ru_frame torchrun; command -v torchrun 2>/dev/null
  ru_frame clock; date +%s 2>/dev/null
  printf '\\n\\036%s end\\n' "$RU_TOKEN"
}
"""

_MAIN = """
export RU_BOOT RU_PROGRAM RU_TOKEN RU_REQUEST RU_WANTED RU_DEFAULT RU_CHDIR RU_SETUP RU_INNER
RU_PATH_BEFORE=$PATH; export RU_PATH_BEFORE
RU_LIMIT=; RU_SHORT=; RU_SETUP_LIMIT=
if command -v timeout >/dev/null 2>&1; then
  RU_LIMIT="timeout $RU_SECONDS"; RU_SHORT="timeout 4"; RU_SETUP_LIMIT="timeout $RU_SETUP_SECONDS"
fi
export RU_LIMIT
printf '\\n\\036%s begin\\n' "$RU_TOKEN"
# A file server that is down would hold this very shell: a child looks first.
if [ -n "$RU_SHORT" ]; then
  timeout -s KILL $RU_LOOK_SECONDS sh -c 'for ru_p; do [ -e "$ru_p" ]; done; :' ringup-look \\
    "$RU_CHDIR" "$RU_WANTED" "$RU_DEFAULT" 2>/dev/null
  [ $? -lt 124 ] || { RU_CHDIR=/; RU_WANTED=; RU_DEFAULT=; }
fi
cd -- "$RU_CHDIR" 2>/dev/null
if [ -n "$RU_SETUP" ]; then
  ru_j=sh; command -v bash >/dev/null 2>&1 && ru_j=bash
  $RU_SETUP_LIMIT "$ru_j" -c "$RU_INNER"; ru_s=$?
  [ $ru_s = 0 ] && exit 0
  [ $ru_s = 64 ] || printf '\\n\\036%s setup-failed %s\\n' "$RU_TOKEN" "$ru_s"
fi
ru_run || ru_plain
"""

# In a shell of its own: a set-up may end its shell, or never end.
_INNER = """
printf '\\n\\036%s setup\\n' "$RU_TOKEN"
{ eval "$RU_SETUP"; } 2>&1 </dev/null
ru_s=$?
printf '\\n\\036%s setup-end %s\\n' "$RU_TOKEN" "$ru_s"
[ $ru_s = 0 ] || exit 65
ru_run
"""


@functools.cache
def _program(parts: tuple[str, ...]) -> str:
    """The sources of some parts, packed: a variable of at most 128 KiB must hold them."""
    folder = resources.files("ringup") / "payload"
    pieces = ["", (folder / "facts.py").read_text("utf-8")]
    for part in parts:
        pieces += [part, "\n".join((folder / name).read_text("utf-8") for name in PARTS[part].split())]
    return base64.b64encode(zlib.compress("\x1f".join(pieces).encode(), 9)).decode("ascii")


def facts_script(
    token: str, request: Mapping[str, Any], *, parts: Sequence[str], setup: str = "", scale: float = 1.0
) -> str:
    """
    The script that asks a node for `parts` with `request` (see payload/facts*.py).

    `token` marks what is ours in its output.  `scale` stretches every limit.
    """
    limits = {part: LIMITS_S[part] * scale for part in parts}
    asked = {**request, "parts": [*parts], "limits": limits, "setup": setup, "where_present": WHERE_PRESENT}
    seconds = 2 * max(limits.values()) + 1  # a starved part gets twice its limit
    values = {
        "RU_TOKEN": token,
        "RU_PROGRAM": _program(tuple(parts)),
        "RU_BOOT": _BOOT,
        "RU_REQUEST": ascii(asked),
        "RU_WANTED": str(request.get("python", "")),
        "RU_DEFAULT": str(request.get("default_python", "")),
        "RU_CHDIR": str(request.get("chdir", "")) or ".",
        "RU_SETUP": setup,
        "RU_INNER": _RUN + _INNER if setup else "",
        "RU_LOOK_SECONDS": f"{max(1.0, LOOK_S * scale):.0f}",
        "RU_SECONDS": f"{seconds:.0f}",
        "RU_SETUP_SECONDS": f"{SETUP_LIMIT_S * scale + seconds:.0f}",
    }
    assignments = "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    return assignments + "\n" + _RUN + _PLAIN + _MAIN
