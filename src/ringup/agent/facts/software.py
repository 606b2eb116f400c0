"""
The job's Python and the packages in it, read from files.

torch is never imported: that costs seconds and gigabytes.  Versions come from the names of dist-info
directories and from torch/version.py, in the order of the interpreter's sys.path, so the first one is the one
that an import would load.
"""

import os
import sys

from ringup.agent.facts import nccl
from ringup.agent.proc.command import output_of, which
from ringup.agent.proc.files import listed, required, text

PACKAGES = (
    "torch", "accelerate", "deepspeed", "colossalai", "llamafactory", "jax", "jaxlib", "lightning",
    "pytorch_lightning", "transformers", "torchrunx", "torchvision", "triton", "nccl4py",
    "habana_torch_plugin", "intel_extension_for_pytorch", "libtpu", "torch_gcu", "torch_mlu", "torch_musa",
    "torch_neuronx", "torch_npu", "torch_sdaa", "torch_xla",
)  # fmt: skip
LAUNCHERS = ("accelerate", "deepspeed", "colossalai", "llamafactory", "jax")
MOST_ENTRIES = 20000
LIBRARY, PLUGIN = "libnccl.so", "libnccl-net"
MOST_LIBRARIES = 40
SYSTEM_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64",
    "/usr/local/lib", "/usr/local/cuda/lib64", "/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64",
    "/opt/aws-ofi-nccl/lib", "/opt/hpcx/nccl_rdma_sharp_plugin/lib", "/var/lib/tcpx/lib64",
    "/usr/local/nvidia/lib64", "/usr/local/gib/lib64",
)  # fmt: skip
"""Folders of the loader and of plugin packages (AWS, NVIDIA's HPC-X, Google)."""

ASK_PATH = "import sys;print(repr((sys.version.split()[0],sys.path[1:])))"
ASK_TORCH = (
    "import importlib.util as u;s=u.find_spec('torch');"
    "print(repr(list(s.submodule_search_locations or []) if s else []))"
)


def chosen(request):
    """The job's interpreter: as named, else the environment's unless --setup brought one, else python3."""
    if request.get("python"):
        return which(request["python"])
    default, first = request.get("default_python", ""), which("python3")
    brought = request.get("setup") and first != which("python3", os.environ.get("RU_PATH_BEFORE", ""))
    return (default and not brought and which(default)) or first or which("python")


def literal(printed):
    """A value that another interpreter printed; raises SyntaxError or ValueError for anything else."""
    from ast import literal_eval  # an import of 3 ms

    return literal_eval(printed)


def version_and_path(python, runner):
    """Its version, and its sys.path as a job would have it (we run with -E -S)."""
    if python == runner and not os.environ.get("PYTHONHOME"):
        import site

        # -E hides PYTHONPATH and PYTHONNOUSERSITE from us, but not from the job.
        if os.environ.get("PYTHONNOUSERSITE"):
            site.ENABLE_USER_SITE = False
        given = [p for p in os.environ.get("PYTHONPATH", "").split(":") if p]
        site.main()
        return sys.version.split()[0], given + [p for p in sys.path if p]
    lines = output_of([python, "-c", ASK_PATH], 4.0).splitlines()
    # A site's start-up files may print lines, too.
    answer = next((line for line in reversed(lines) if line.startswith("('")), "")
    version, path = literal(answer)
    return str(version), [str(p) for p in path]


def distribution(name):
    """("torch", "2.13.0+cpu") of "torch-2.13.0+cpu.dist-info", else None; - . _ are alike (PEP 503)."""
    for suffix in (".dist-info", ".egg-info"):
        if name.endswith(suffix):
            project, _, version = name[: -len(suffix)].partition("-")
            version = version.split("-py")[0]
            return project.lower().replace(".", "_"), version
    return None


def versions_in(directory):
    """Relevant distributions in one directory of sys.path."""
    found = {}
    for name in os.listdir(directory)[:MOST_ENTRIES]:
        known = distribution(name)
        if known and (known[0] in PACKAGES or known[0].startswith("nvidia_nccl")):
            lines = [] if known[1] else text(os.path.join(directory, name, "METADATA")).splitlines()
            versions = [line.partition(":")[2].strip() for line in lines if line.startswith("Version:")]
            found[known[0]] = known[1] or (versions or [""])[0]
        elif name in LAUNCHERS and os.path.isfile(os.path.join(directory, name, "__init__.py")):
            found.setdefault(name, "")  # a checkout on PYTHONPATH has no version file
    return found


def torch_version(directory):
    """(version, cuda) from torch/version.py."""
    values = {}
    for line in required(os.path.join(directory, "version.py")).splitlines():
        left, equals, right = line.partition("=")
        name = left.partition(":")[0].strip()
        if equals and name in ("__version__", "cuda"):
            values.setdefault(name, right.strip().strip("'\""))
    cuda = values.get("cuda", "None")
    return values.get("__version__", ""), "" if cuda == "None" else cuda


def library_folders(request, found):
    """(source, directory), in the loader's order as far as it is known."""
    given = request.get("env", {}).get("LD_LIBRARY_PATH") or os.environ.get("LD_LIBRARY_PATH", "")
    places = [("LD_LIBRARY_PATH", p) for p in given.split(":") if p]
    torch = found.get("torch_path", "")
    if torch:
        site = os.path.dirname(torch)
        places += [("wheel", site + "/nvidia/nccl/lib"), ("torch", torch + "/lib")]
    if found.get("path"):
        prefix = os.path.dirname(os.path.dirname(found["path"]))
        if prefix not in ("/usr", "/usr/local", "/", ""):
            places.append(("conda" if os.path.isdir(prefix + "/conda-meta") else "prefix", prefix + "/lib"))
    return places


def release(name):
    """ "2.27.7" of libnccl.so.2.27.7; "" if the name has no version."""
    return name[len(LIBRARY) + 1 :] if name.startswith(LIBRARY + ".") and name.count(".") >= 4 else ""


def libraries(request, found, root):
    """(libraries, network plugins) that a process of the job could load, without duplicates."""
    given = request.get("env", {}).get("LD_PRELOAD") or os.environ.get("LD_PRELOAD", "")
    named = [("LD_PRELOAD", w) for w in given.replace(":", " ").split()]
    candidates = [(s, w) for s, w in named if "libnccl" in os.path.basename(w)]
    folders = library_folders(request, found) + [("system", root + p) for p in SYSTEM_FOLDERS]
    for source, folder in folders:
        names = [n for n in listed(folder) if n.startswith("libnccl") and ".so" in n]
        candidates += [(source, folder + "/" + n) for n in names]
    cores, plugins, seen = [], [], set()
    for source, path in candidates:
        real = os.path.realpath(path)
        name = os.path.basename(path)
        if real in seen or not os.path.exists(real):
            continue
        seen.add(real)
        if name.startswith(PLUGIN):
            plugins.append(path)
        elif name.startswith(LIBRARY):
            # Else the version of its wheel.
            version = release(os.path.basename(real)) or (found.get("nccl", "") if source == "wheel" else "")
            cores.append({"path": path, "version": version, "source": source})
    return cores[:MOST_LIBRARIES], plugins[:MOST_LIBRARIES]


def nccl_version(site, torch_directory, packages, cuda):
    """Version of the nvidia-nccl wheel for torch's CUDA, else of any, else from a library's file name."""
    wheels = [name for name in packages if name.startswith("nvidia_nccl") and packages[name]]
    for name in ["nvidia_nccl_cu" + cuda.partition(".")[0], *wheels]:
        if packages.get(name):
            return packages[name]
    prefix = os.path.dirname(os.path.dirname(os.path.dirname(site)))
    for directory in (os.path.join(torch_directory, "lib"), os.path.join(prefix, "lib")):
        releases = [found for found in map(release, listed(directory)) if found]
        if releases:
            return releases[-1]
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
        # An editable install uses an import hook: only the interpreter itself can locate it.
        found = literal((output_of([python, "-c", ASK_TORCH], 4.0).splitlines() or [""])[-1])
        torch_directory = str(found[0]) if found else ""
    torch, cuda, nccl = "", "", ""
    if torch_directory:
        try:
            torch, cuda = torch_version(torch_directory)
        except OSError:
            torch = packages.get("torch", "")
        if cuda:
            nccl = nccl_version(os.path.dirname(torch_directory), torch_directory, packages, cuda)
    return {"torch": torch, "cuda": cuda, "nccl": nccl, "packages": packages, "torch_path": torch_directory}


def interpreter(request):
    python = chosen(request)
    if not python:
        return {"path": ""}
    version, path = version_and_path(python, request["runner"])
    found = installed(python, version, path)
    found.update({"path": python, "version": version})
    return found


def gpus(root, found):
    """
    Put counts of GPUs into `found`, without waking the driver if its files suffice; else raises OSError.

    `proc` counts /proc/driver/nvidia/gpus (None without it), `devices` counts /dev/nvidiaN. A container may
    see the machine's /proc and no device file, and a fresh machine may not have made device files yet: then
    `listed`, nvidia-smi's list, counts.
    """
    folder = root + "/proc/driver/nvidia/gpus"
    found["proc"] = len(os.listdir(folder)) if os.path.isdir(folder) else None
    names = [n for n in os.listdir(root + "/dev") if n.startswith("nvidia") and n[6:].isdigit()]
    found["devices"] = len(names)
    found["driver"] = os.path.exists(root + "/proc/driver/nvidia/version")
    if os.path.exists(root + "/dev/kfd"):
        # AMD's driver lists a CPU with the number 0, and hides GPUs that a container may not use.
        base = root + "/sys/class/kfd/kfd/topology/nodes"
        numbers = [text("%s/%s/gpu_id" % (base, node)) for node in listed(base)]
        found["amd"] = len([number for number in numbers if number not in ("", "0")])
        if not numbers and not names:
            raise OSError("AMD GPUs cannot be counted: their driver's list in /sys is not there")
    if (found["proc"] and not names) or os.path.exists(root + "/dev/dxg"):
        tool = which("nvidia-smi")
        found["listed"] = output_of([tool, "-L"], 5.0).splitlines() if tool else []
    elif found["driver"] and found["proc"] is None and not names:
        raise OSError("the NVIDIA driver is loaded, its list of GPUs cannot be read")
    return found


def questions(request, root):
    counted, found = {}, {}
    env = request.get("env", {})
    os.environ.update({name: env[name] for name in ("PYTHONPATH", "PYTHONNOUSERSITE") if name in env})
    yield "gpu_count", lambda: gpus(root, counted)
    yield "torchrun_on_path", lambda: which("torchrun")
    yield "interpreter", lambda: found.update(interpreter(request)) or found
    yield "nccl_libraries", lambda: libraries(request, found, root)[0]
    yield "nccl_plugins", lambda: libraries(request, found, root)[1]
    # Last, because it takes the longest and may hang.
    yield "nccl_answer", lambda: nccl.ask_nccl(request, counted, found)
