"""
Queries NCCL without a GPU: the interface of its bootstrap, and its release.

software.py chooses the interpreter.  A child, which is the job's interpreter in the job's environment, loads
the libnccl that torch would load and calls ncclGetVersion and ncclGetUniqueId.  It touches no GPU, and NCCL's
listening thread ends with it.
"""

import os

from ringup.agent.proc.command import output_of

ASK_S = 8.0
"""Seconds for an answer (0.6 s on an idle machine); more while the child only waits for a CPU."""
MOST_LINES = 60
LINE_LENGTH = 400
MARK = "ringup-nccl "
ASK_NCCL = r"""
import ctypes, os, shlex, signal, sys

MARK = "ringup-nccl "
BUILT_IN = "this torch has NCCL built in"
NO_NCCL = "the loader does not find torch's libnccl"


def library(torch):
    # (path of the libnccl this job would load, why there is none)
    for word in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if "libnccl.so" in word:
            return word, ""
    user = torch + "/lib/libtorch_cuda.so"
    if torch and os.path.exists(user):
        # Only the loader knows: torch's wheels have DT_RPATH (.ci/manywheel/build_cuda.sh), which goes before
        # LD_LIBRARY_PATH; others have DT_RUNPATH, which goes after it (ld.so(8)).
        lines = os.popen("exec ldd " + shlex.quote(user) + " 2>&1").read().splitlines()
        found = [line.split()[2] for line in lines if "libnccl.so" in line and "=> /" in line]
        if not found and not any("libc.so" in line for line in lines):
            raise OSError("ldd: " + (lines or ["no answer"])[-1])
        wanted = any("libnccl.so" in line for line in lines)
        return (found[0], "") if found else ("", NO_NCCL if wanted else BUILT_IN)
    places = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    for place in places + [p + "/nvidia/nccl/lib" for p in sys.path if p]:
        if os.path.isfile(place + "/libnccl.so.2"):
            return place + "/libnccl.so.2", ""
    return "", "no libnccl beside this interpreter"


def mapped(name):
    # paths of libraries of that name in this process
    with open("/proc/self/maps") as file:
        return [line.split()[-1] for line in file if name in line]


def plugin():
    # which network plugin the loader finds; in a child, for what it runs when loaded is not ours
    named = os.environ.get("NCCL_NET_PLUGIN", "")
    names = [n for w in named.split(",") if w for n in (w, "libnccl-net-%s.so" % w)] or ["libnccl-net.so"]
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    signal.alarm(2)
    for name in names if named.lower() != "none" else []:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        print(MARK + "plugin " + (mapped("/" + os.path.basename(name)) or [name])[0], flush=True)
        os._exit(0)
    print(MARK + "plugin ", flush=True)
    os._exit(0)


def ask(torch):
    path, missing = library(torch)
    print(MARK + ("missing " + missing if missing else "library " + os.path.realpath(path)), flush=True)
    if missing:
        return
    plugin()
    libc = ctypes.CDLL(None)
    # Lines at once: a library that hangs or dies has already printed its lines.
    libc.setlinebuf(ctypes.c_void_p.in_dll(libc, "stdout"))
    nccl, number = ctypes.CDLL(path), ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(number))
    print(MARK + "version %d" % number.value, flush=True)
    print(MARK + "result %d" % nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)), flush=True)
    libc.fflush(None)


try:
    ask(sys.argv[1])
except Exception as error:
    print("%s: %s" % (type(error).__name__, error), flush=True)
    os._exit(1)
os._exit(0)
"""


def why_not(request, counted, found):
    """Why NCCL is not queried: another backend, no GPU (`counted`), no Python with it; else ""."""
    backend = request.get("backend")
    if backend and backend != "nccl":
        return "the job uses %s" % backend
    if not backend and not any(counted.get(name) for name in ("proc", "devices", "listed", "driver")):
        return "AMD GPUs: RCCL is not queried" if "amd" in counted else "no GPU on this node"
    if not found.get("path"):
        return "no Python interpreter to query it with"
    return "this torch is built without CUDA" if found.get("torch") and not found.get("cuda") else ""


def ask_nccl(request, counted, found):
    """NCCL's answer on this node; raises OSError with its last output if it hangs or dies."""
    reason = why_not(request, counted, found)
    if reason:
        return {"not_asked": reason}
    os.environ.update(request.get("nccl_env", {}))
    # NCCL must write its log to us, at the level that has the answer, whatever the job sets.
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,BOOTSTRAP,ENV,NET", NCCL_DEBUG_FILE="")
    limit = request["limits"]["software"]
    words = [found["path"], "-c", ASK_NCCL, found.get("torch_path", "")]
    text = output_of(words, min(ASK_S, limit * 0.67), limit * 0.9)
    lines = [line[:LINE_LENGTH] for line in text.splitlines() if MARK in line or " NCCL " in line]
    asked_with = {k: os.environ.get(k, "") for k in request.get("nccl_steering", ())}
    return {"lines": lines[:MOST_LINES], "asked_with": asked_with}
