"""
NCCL itself, asked without a GPU: which interface its bootstrap takes, and which release it is.

Follows facts_software.py in one part (the interpreter is chosen there).  A child, which is the
job's own interpreter in the job's environment, loads the libnccl that torch would load and calls
ncclGetVersion and ncclGetUniqueId; no GPU is touched, and its listening thread dies with it.
"""

import os

ASK_S = 8.0
"""Seconds for an answer (0.6 s on an idle machine); more while the child only waits for its turn."""
MOST_LINES = 60
LINE_LENGTH = 400
MARK = "ringup-nccl "
STEERING = ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID", "NCCL_NET_PLUGIN")
"""What the answer depends on, besides nccl.conf."""
# Library path of ld.so: a preloaded one, DT_RPATH of what needs it, LD_LIBRARY_PATH, DT_RUNPATH (ld.so(8)).
# torch's wheels have DT_RPATH (its .ci/manywheel/build_cuda.sh), so LD_LIBRARY_PATH does not reach them.
ASK_NCCL = r"""
import ctypes, os, signal, struct, sys

MARK = "ringup-nccl "


def dynamic(path):
    # (names needed, DT_RPATH, DT_RUNPATH) of an ELF64 library
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a little-endian ELF64 library")
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(struct.unpack_from("<Q", head, 32)[0])
        table, loads, where = file.read(size * count), [], None
        for n in range(count):
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", table, n * size)
            if kind == 1:
                loads.append((address, offset, length))
            elif kind == 2:
                where = offset, length
        file.seek(where[0])
        raw = file.read(where[1])
        entries = [struct.unpack_from("<qQ", raw, n) for n in range(0, len(raw) - 15, 16)]
        tags = dict(entries)
        strings = tags[5]
        start = next(o + strings - a for a, o, n in loads if a <= strings < a + n)

        def word(place):
            file.seek(start + place)
            return file.read(8192).split(b"\0")[0].decode()

        def places(tag):
            words = word(tags[tag]) if tag in tags else ""
            origin = os.path.dirname(path)
            return [p for p in words.replace("${ORIGIN}", origin).replace("$ORIGIN", origin).split(":") if p]

        return [word(v) for t, v in entries if t == 1], places(15), places(29)


def library(torch):
    # (path of the libnccl this job would load, why there is none)
    for word in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if "libnccl.so" in word:
            return word, ""
    first, last, user = [], [], torch + "/lib/libtorch_cuda.so"
    if torch and os.path.exists(user):
        needed, rpath, last = dynamic(user)
        if not any(n.startswith("libnccl.so") for n in needed):
            return "", "this torch has NCCL built in"
        first = [] if last else rpath
    else:
        last = [p + "/nvidia/nccl/lib" for p in sys.path if p]
    named = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    for place in first + named + last:
        if os.path.isfile(place + "/libnccl.so.2"):
            return place + "/libnccl.so.2", ""
    return ("libnccl.so.2", "") if os.path.exists(user) else ("", "no libnccl beside this interpreter")


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
    print(MARK + "missing " + missing if missing else MARK + "library " + path, flush=True)
    if missing:
        return
    plugin()
    libc = ctypes.CDLL(None)
    # Lines at once: a library that hangs or dies has said what it could.
    libc.setlinebuf(ctypes.c_void_p.in_dll(libc, "stdout"))
    nccl, number = ctypes.CDLL(path), ctypes.c_int()
    # A bare name was looked up in the loader's own cache.
    print(MARK + "library " + (mapped("/libnccl.so") or [path])[0], flush=True)
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


def wants_nccl(request, counted):
    """Whether the job would use NCCL: told so, or there are GPUs (which `counted` failed to count)."""
    if request.get("backend"):
        return request["backend"] == "nccl"
    return any(counted.get(name) for name in ("proc", "devices", "listed", "driver"))


def why_not(request, counted):
    if request.get("backend"):
        return "the job uses %s" % request["backend"]
    return "AMD GPUs, and RCCL is not asked" if counted.get("amd") else "no GPU on this node"


def ask_nccl(request, counted, found):
    """What NCCL says on this node; raises OSError with its last words where it hangs or dies."""
    if not wants_nccl(request, counted):
        return {"not_asked": why_not(request, counted)}
    if not found.get("path"):
        return {"not_asked": "no interpreter to ask it with"}
    if found.get("torch") and not found.get("cuda"):
        return {"not_asked": "this torch is built without CUDA"}
    os.environ.update(request.get("nccl_env", {}))
    # Its words come to us, and at the level that holds the answer, whatever the job wants.
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,BOOTSTRAP,ENV,NET", NCCL_DEBUG_FILE="")
    limit = request["limits"]["software"]
    words = [found["path"], "-c", ASK_NCCL, found.get("torch_path", "")]
    text = output_of(words, min(ASK_S, limit * 0.67), limit * 0.9)  # noqa: F821 (of facts_software.py)
    lines = [line[:LINE_LENGTH] for line in text.splitlines() if MARK in line or " NCCL " in line]
    return {"lines": lines[:MOST_LINES], "asked_with": {k: os.environ.get(k, "") for k in STEERING}}
