"""
The `sh` script for a node: it runs the Python program, or lists the Pythons that cannot run it.

It runs in the job's shell: after `cd` to its directory and `--setup`, which may set python3, PATH or limits.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ringup.agent_bundle import program

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
    "names": ("own_name", "peer_names", "reverse_lookup_s"),
    "processes": ("listeners", "leftovers", "stuck"),
    "machine": (
        "container", "memory", "numa", "ptrace_scope", "remove_ipc", "product", "shm", "tmp", "shm_files",
    ),
    "software": (
        "interpreter", "torchrun_on_path", "gpu_count", "nccl_libraries", "nccl_plugins", "nccl_answer",
    ),
    "work": ("looks", "chdir", "script", "disks", "revision"),
    "home": ("cache", "nccl_conf"),
}  # fmt: skip
"""Part (a file of agent/facts/) -> fields of Node from it; an answer that is not named here is dropped."""

LIMITS_S = dict.fromkeys(FIELDS, 3.0)
LIMITS_S |= {"gpu": 8.0, "names": 6.0, "processes": 5.0, "software": 12.0, "work": 7.0, "home": 4.0}
"""Seconds for each part on a node.  All parts run at once; one that waits for a CPU gets twice that."""

WHERE_PRESENT = ("gpu", "pci")
"""Parts that start no process on a node without their hardware; see agent/facts/main.py."""

LOOK_S = 3.0
"""A path whose stat() takes longer is on a file server that is down."""
SETUP_LIMIT_S = 20
"""`conda activate` takes half a second on a local disk and several on a busy file server."""

_BOOT = "import os;exec(os.environ.pop('RU_PROGRAM'))"

# Runs the program with the first Python that can; exit code 64 means that none could.
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

# For a node without a usable Python: the ones that were found and could not run the program.
_PLAIN = """
ru_plain() {
  printf '\\n\\036%s unusable\\n' "$RU_TOKEN"
  for ru_r in "$RU_WANTED" "$RU_DEFAULT" python3; do [ -n "$ru_r" ] && command -v -- "$ru_r"; done
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

# In its own shell: --setup may end its shell, or never end.
_INNER = """
printf '\\n\\036%s setup\\n' "$RU_TOKEN"
{ eval "$RU_SETUP"; } 2>&1 </dev/null
ru_s=$?
printf '\\n\\036%s setup-end %s\\n' "$RU_TOKEN" "$ru_s"
[ $ru_s = 0 ] || exit 65
ru_run
"""


def facts_script(
    token: str,
    request: Mapping[str, Any],
    *,
    parts: Sequence[str] = tuple(FIELDS),
    setup: str = "",
    scale: float = 1.0,
) -> str:
    """The script that collects `parts`; `token` marks ringup's output, `scale` multiplies every limit."""
    limits = {part: LIMITS_S[part] * scale for part in parts}
    asked = {**request, "parts": [*parts], "limits": limits, "setup": setup, "where_present": WHERE_PRESENT}
    seconds = 2 * max(limits.values()) + 1  # a starved part gets twice its limit
    values = {
        "RU_TOKEN": token,
        "RU_PROGRAM": program("facts.main", *(f"facts.{part}" for part in parts)),
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
