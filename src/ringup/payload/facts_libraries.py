"""
The NCCL libraries and network plugins a process of the job could load.

Follows facts_software.py in one part: the interpreter's own libraries are found beside its packages.
"""

import os

LIBRARY, PLUGIN = "libnccl.so", "libnccl-net"
MOST_LIBRARIES = 40
SYSTEM_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64",
    "/usr/local/lib", "/usr/local/cuda/lib64", "/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64",
    "/opt/aws-ofi-nccl/lib", "/opt/hpcx/nccl_rdma_sharp_plugin/lib", "/var/lib/tcpx/lib64",
    "/usr/local/nvidia/lib64", "/usr/local/gib/lib64",
)  # fmt: skip
"""Of the loader and of the plugins' own packages (AWS, NVIDIA's HPC-X, Google)."""


def library_folders(request, found):
    """(where it is from, directory), in the loader's order as far as that can be told."""
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


def version_of_library(path, source, found):
    """From the name of the file itself, or of the wheel it came in; "" where neither tells."""
    name = os.path.basename(os.path.realpath(path))
    if name.startswith(LIBRARY + ".") and name.count(".") >= 4:
        return name[len(LIBRARY) + 1 :]
    return found.get("nccl", "") if source == "wheel" else ""


def libraries(request, found, root):
    """(libraries, plugins): each file once, however many names lead to it."""
    given = request.get("env", {}).get("LD_PRELOAD") or os.environ.get("LD_PRELOAD", "")
    named = [("LD_PRELOAD", w) for w in given.replace(":", " ").split()]
    candidates = [(s, w) for s, w in named if "libnccl" in os.path.basename(w)]
    folders = library_folders(request, found) + [("system", root + p) for p in SYSTEM_FOLDERS]
    for source, folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        names = sorted(n for n in names if n.startswith("libnccl") and ".so" in n)
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
            version = version_of_library(path, source, found)
            cores.append({"path": path, "version": version, "source": source})
    return cores[:MOST_LIBRARIES], plugins[:MOST_LIBRARIES]
