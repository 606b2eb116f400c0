"""
The python the job would use and what is installed beside it, read from files.

torch is never imported: that costs seconds and gigabytes.  Versions come from the
names of dist-info directories and from torch/version.py, in the order of the
interpreter's own sys.path, so the first one found is the one an import would take.
"""

import os
import select
import sys
import time


PACKAGES = (
    "torch", "numpy", "accelerate", "deepspeed", "colossalai", "llamafactory", "jax", "jaxlib", "lightning",
    "pytorch_lightning", "transformers", "torchrunx", "torchvision", "triton", "nccl4py",
)  # fmt: skip
LAUNCHERS = ("accelerate", "deepspeed", "colossalai", "llamafactory", "jax")
MOST_ENTRIES = 20000

ASK_PATH = "import sys;print(repr((sys.version.split()[0],sys.path[1:])))"
ASK_TORCH = (
    "import importlib.util as u;s=u.find_spec('torch');"
    "print(repr(list(s.submodule_search_locations or []) if s else []))"
)


def is_busy(pid):
    """Whether a process runs, waits for its turn, or reads: a busy node is no reason to give up."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[0] in (b"R", b"D")
    except (OSError, IndexError):
        return False


def output_of(words, seconds, most=0.0):
    """
    Output of a program; raises OSError with its last words when it fails or is late.

    It has `seconds`, and up to `most` as long as it is busy.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write_end, 1)
            os.dup2(write_end, 2)
            os.execv(words[0], words)
        except BaseException as error:
            os.write(2, ("%s: %s" % (words[0], error)).encode("utf-8", "replace"))
        finally:
            os._exit(127)
    os.close(write_end)
    data, began, end = b"", time.monotonic(), time.monotonic() + seconds
    while len(data) < 1 << 20:
        left = end - time.monotonic()
        if left <= 0 or not select.select([read_end], [], [], left)[0]:
            if end < began + most and is_busy(pid):
                end += 0.5
                continue
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            said = data.decode("utf-8", "backslashreplace").strip()[-300:]
            late = "%s gave no answer within %.3g s" % (words[0], end - began)
            raise OSError("%s; so far it said: %s" % (late, said) if said else late)
        block = os.read(read_end, 65536)
        if not block:
            break
        data += block
    os.close(read_end)
    if len(data) >= 1 << 20:
        os.kill(pid, 9)  # it may never end
    status = os.waitpid(pid, 0)[1]
    text = data.decode("utf-8", "backslashreplace").strip()
    if status:
        how = "signal %d" % (status & 127) if status & 127 else "exit status %d" % (status >> 8)
        raise OSError("%s ended with %s: %s" % (words[0], how, text[-300:]))
    return text


def which(name, path=None):
    """A program as the job's shell would find it, "" when it would not."""
    if "/" in name:
        return os.path.abspath(name) if os.path.isfile(name) and os.access(name, os.X_OK) else ""
    # A python3 that is a shim (pyenv) extends PATH for us; RU_PATH is what the job's shell had.
    given = os.environ.get("RU_PATH") or os.environ.get("PATH", os.defpath)
    for directory in (given if path is None else path).split(":"):
        found = os.path.abspath(os.path.join(directory or ".", name))
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return ""


def chosen(request):
    """
    Path of the job's interpreter.

    What the user named; else the launcher's active environment, unless --setup brought
    another python3 along; else python3.
    """
    if request.get("python"):
        return which(request["python"])
    default = request.get("default_python", "")
    if default and not (request.get("setup") and environment_changed(request)):
        found = which(default)
        if found:
            return found
    return which("python3") or which("python")


def environment_changed(request):
    """Whether --setup made another python3 the first on PATH."""
    return which("python3") != which("python3", os.environ.get("RU_PATH_BEFORE", ""))


def own_path():
    """sys.path of this very interpreter as a job would have it (we run with -E -S)."""
    import site

    # -E hid PYTHONPATH and PYTHONNOUSERSITE from us, not from the job.
    if os.environ.get("PYTHONNOUSERSITE"):
        site.ENABLE_USER_SITE = False
    given = [p for p in os.environ.get("PYTHONPATH", "").split(":") if p]
    before = len(sys.path)
    site.main()
    return sys.version.split()[0], given + [p for p in sys.path if p], before


def literal(text):
    """A value another interpreter printed; raises SyntaxError or ValueError for anything else."""
    from ast import literal_eval  # 3 ms, where they are needed

    return literal_eval(text)


def version_and_path(python, runner):
    if python == runner and not os.environ.get("PYTHONHOME"):
        version, path, _ = own_path()
        return version, path
    text = output_of([python, "-c", ASK_PATH], 4.0).splitlines()
    # Start-up files of a site may print lines of their own.
    answer = next((line for line in reversed(text) if line.startswith("('")), "")
    version, path = literal(answer)
    return str(version), [str(p) for p in path]


def distribution(name):
    """
    ("torch", "2.13.0+cpu") of "torch-2.13.0+cpu.dist-info", else None.

    Names of distributions compare without case and with - . _ alike (PEP 503).
    """
    for suffix in (".dist-info", ".egg-info"):
        if name.endswith(suffix):
            project, _, version = name[: -len(suffix)].partition("-")
            version = version.split("-py")[0]
            return project.lower().replace(".", "_"), version
    return None


def versions_in(directory):
    """Distributions of interest in one directory of sys.path."""
    found = {}
    for count, name in enumerate(os.listdir(directory)):
        if count > MOST_ENTRIES:
            break
        known = distribution(name)
        if known and (known[0] in PACKAGES or known[0].startswith("nvidia_nccl")):
            found[known[0]] = known[1] or metadata_version(os.path.join(directory, name))
        elif name in LAUNCHERS and os.path.isfile(os.path.join(directory, name, "__init__.py")):
            found.setdefault(name, "")  # a checkout on PYTHONPATH has no record of its version
    return found


def metadata_version(directory):
    try:
        with open(os.path.join(directory, "METADATA"), "rb") as file:
            for line in file.read(65536).decode("utf-8", "replace").splitlines():
                if line.startswith("Version:"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def torch_version(directory):
    """(version, cuda) as torch/version.py states them."""
    values = {}
    with open(os.path.join(directory, "version.py"), "rb") as file:
        for line in file.read(65536).decode("utf-8", "replace").splitlines():
            left, equals, right = line.partition("=")
            name = left.partition(":")[0].strip()
            if equals and name in ("__version__", "cuda", "hip"):
                values.setdefault(name, right.strip().strip("'\""))
    cuda = values.get("cuda", "None")
    return values.get("__version__", ""), "" if cuda == "None" else cuda


def nccl_version(site, torch_directory, packages):
    """Of the nvidia-nccl wheel beside torch, else of a library file that carries it in its name."""
    for name, version in packages.items():
        if name.startswith("nvidia_nccl") and version:
            return version
    prefix = os.path.dirname(os.path.dirname(os.path.dirname(site)))
    for directory in (os.path.join(torch_directory, "lib"), os.path.join(prefix, "lib")):
        try:
            names = sorted(
                n for n in os.listdir(directory) if n.startswith("libnccl.so.") and n.count(".") >= 4
            )
        except OSError:
            continue
        if names:
            return names[-1][len("libnccl.so.") :]
    return ""


def installed(python, version, path):
    """Facts of one interpreter from the directories on its path."""
    packages, torch_directory = {}, ""
    for directory in path:
        if not os.path.isdir(directory):
            continue
        try:
            for name, version in versions_in(directory).items():
                packages.setdefault(name, version)
        except OSError:
            continue
        if not torch_directory and os.path.isfile(os.path.join(directory, "torch", "__init__.py")):
            torch_directory = os.path.join(directory, "torch")
    if not torch_directory and not version.startswith("2."):
        # An editable install hides behind a finder: only the interpreter itself knows.
        found = literal((output_of([python, "-c", ASK_TORCH], 4.0).splitlines() or [""])[-1])
        torch_directory = str(found[0]) if found else ""
    torch, cuda, nccl = "", "", ""
    if torch_directory:
        try:
            torch, cuda = torch_version(torch_directory)
        except OSError:
            torch = packages.get("torch", "")
        if cuda:
            nccl = nccl_version(os.path.dirname(torch_directory), torch_directory, packages)
    return {
        "torch": torch,
        "cuda": cuda,
        "nccl": nccl,
        "numpy": packages.get("numpy", ""),
        "packages": packages,
        "torch_path": torch_directory,
    }


def interpreter(request):
    python = chosen(request)
    if not python:
        return {"path": ""}
    version, path = version_and_path(python, request["runner"])
    found = installed(python, version, path)
    found.update({"path": python, "version": version})
    return found


def gpus(root):
    """
    What can be told of GPUs, without waking the driver where its files tell enough.

    `proc` counts /proc/driver/nvidia/gpus (None where there is none), `devices` counts
    /dev/nvidiaN.  A container may see the machine's /proc and no device file, a fresh
    machine has made none yet: then `listed` is what nvidia-smi says.
    """
    try:
        proc = len(os.listdir(root + "/proc/driver/nvidia/gpus"))
    except OSError:
        proc = None
    names = [n for n in os.listdir(root + "/dev") if n.startswith("nvidia") and n[6:].isdigit()]
    found = {
        "proc": proc,
        "devices": len(names),
        "amd": os.path.exists(root + "/dev/kfd"),
        "driver": os.path.exists(root + "/proc/driver/nvidia/version"),
    }
    if (proc and not names) or os.path.exists(root + "/dev/dxg"):
        tool = which("nvidia-smi")
        try:
            found["listed"] = output_of([tool, "-L"], 5.0).splitlines() if tool else []
        except OSError as error:
            found["reason"] = str(error)
    return found


def questions(request, root):
    counted, found = {}, {}

    def told(known, value):
        known.update(value)
        return value

    yield "gpus", lambda: told(counted, gpus(root))
    yield "torchrun_on_path", lambda: which("torchrun")
    yield "interpreter", lambda: told(found, interpreter(request))
    # noqa: F821 below is for names of facts_libraries.py and facts_nccl.py, which follow in this part.
    yield "nccl_libraries", lambda: libraries(request, found, root)[0]  # noqa: F821
    yield "nccl_plugins", lambda: libraries(request, found, root)[1]  # noqa: F821
    # Last: it takes the longest, and may hang.
    yield "nccl_answer", lambda: ask_nccl(request, counted, found)  # noqa: F821
