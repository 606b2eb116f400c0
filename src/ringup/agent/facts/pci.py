"""The PCI tree above GPUs and NICs, from sysfs; configuration space beyond 64 bytes (ACS) needs root."""

import os

from ringup.agent.facts.counters import bus_errors
from ringup.agent.proc.files import link, listed, integer, read, text

MOST = 400
NVIDIA, AMD = 0x10DE, 0x1002
GPU_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)
BRIDGE = 0x0604
NETWORK_CLASSES = (0x0200, 0x0207, 0x0280)
VIRTUAL = ("KVM", "QEMU", "Virtual", "VMware", "Amazon EC2", "Google Compute Engine")
WORDS = ("iommu", "intel_iommu", "amd_iommu", "arm-smmu", "pci=", "pcie_acs_override", "iommu.passthrough")


def is_address(name):
    """ "0000:18:00.0"."""
    parts = name.replace(".", ":").split(":")
    return len(parts) == 4 and name[-2:-1] == "." and all(p.isalnum() for p in parts)


def of_interest(path):
    """A GPU, an NVSwitch or a NIC; virtual functions only if RDMA uses them."""
    kind, vendor = integer(text(path + "/class"), 16) >> 8, integer(text(path + "/vendor"), 16)
    if kind in GPU_CLASSES and vendor in (NVIDIA, AMD):
        return True
    if kind in NETWORK_CLASSES:
        return not os.path.exists(path + "/physfn") or os.path.isdir(path + "/infiniband")
    return kind == 0x0680 and vendor == NVIDIA


def rate(speed):
    """16.0 for "16.0 GT/s PCIe"; None for "Unknown" or ""."""
    try:
        return float(speed.split()[0])
    except (ValueError, IndexError):
        return None


def width(count):
    """Lanes; None without a link."""
    lanes = integer(count)
    return lanes if 0 < lanes <= 32 else None


def access_control(path):
    """
    The ACS control register; None if it is missing or only root may read it.

    Extended capabilities begin at byte 256: identity (16 bits), version (4), next (12); PCIe base
    specification 7.6.3.  Without root the file is 64 bytes long.
    """
    data = read(path + "/config", 4096)
    at = 256
    for _ in range(64):
        if at < 256 or at + 8 > len(data):
            return None
        head = int.from_bytes(data[at : at + 4], "little")
        if head & 0xFFFF == 0x000D:
            return int.from_bytes(data[at + 6 : at + 8], "little")
        at = head >> 20
    return None


def facts_of(path, root_name, above):
    kind = integer(text(path + "/class"), 16) >> 8
    node = text(path + "/numa_node")
    group = os.path.basename(link(path + "/iommu_group"))
    return {
        **bus_errors(path),
        "bus_id": os.path.basename(path),
        "above": above,
        "root": root_name,
        "vendor": integer(text(path + "/vendor"), 16),
        "device": integer(text(path + "/device"), 16),
        "ids": [integer(text(path + "/subsystem_vendor"), 16), integer(text(path + "/subsystem_device"), 16)],
        "class_code": kind,
        "driver": os.path.basename(link(path + "/driver")),
        "numa_node": int(node) if node.isdigit() else None,
        "link_gt_s": rate(text(path + "/current_link_speed")),
        "max_link_gt_s": rate(text(path + "/max_link_speed")),
        "link_width": width(text(path + "/current_link_width")),
        "max_link_width": width(text(path + "/max_link_width")),
        "iommu_group": int(group) if group.isdigit() else None,
        "acs_control": access_control(path) if kind == BRIDGE else None,
        "iommu_type": text(path + "/iommu_group/type"),
    }


def way(real):
    """
    (root complex, bridges from the root port down, paths of the bridges) of a device.

    /sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0
    """
    parts = real.split("/")
    roots = [k for k, part in enumerate(parts) if part.startswith("pci") and ":" in part]
    start = roots[-1] if roots else len(parts) - 2
    bridges = [k for k in range(start + 1, len(parts) - 1) if is_address(parts[k])]
    return parts[start], [parts[k] for k in bridges], ["/".join(parts[: k + 1]) for k in bridges]


def pci(root):
    base = root + "/sys/bus/pci/devices"
    if not os.path.isdir(root + "/sys/bus"):
        raise OSError("/sys is not mounted")
    found = {}
    for name in listed(base):
        if len(found) >= MOST or not of_interest("%s/%s" % (base, name)):
            continue
        real = os.path.realpath("%s/%s" % (base, name))
        top, bridges, paths = way(real)
        for k, path in enumerate(paths):
            if bridges[k] not in found:
                found[bridges[k]] = facts_of(path, top, bridges[:k])
        found[name] = facts_of(real, top, bridges)
    return [found[name] for name in sorted(found)]


def cpuinfo(root):
    """Names and values of the first CPU in /proc/cpuinfo."""
    block = text(root + "/proc/cpuinfo", 8192).partition("\n\n")[0]
    pairs = [line.partition(":")[::2] for line in block.splitlines()]
    return {name.strip(): value.strip() for name, value in pairs}


def processor(root):
    about = cpuinfo(root)
    return {
        "vendor": about.get("vendor_id", ""),
        "family": integer(about.get("cpu family", "")),
        "model": integer(about.get("model", "")),
    }


def virtual_machine(root):
    """The hypervisor's vendor, "" on bare metal: from the CPU's flag, else from the firmware."""
    dmi = root + "/sys/class/dmi/id/"
    name = "%s %s" % (text(dmi + "sys_vendor"), text(dmi + "product_name"))
    if "hypervisor" in cpuinfo(root).get("flags", "").split():
        return name.strip() or "unnamed"
    # CPUs other than x86 have no such flag.
    return name if "metal" not in name and any(word in name for word in VIRTUAL) else ""


def boot_options(root):
    return [word[:200] for word in text(root + "/proc/cmdline").split() if word.startswith(WORDS)]


def questions(request, root):
    yield "pci", lambda: pci(root)
    yield "processor", lambda: processor(root)
    yield "virtual_machine", lambda: virtual_machine(root)
    yield "boot_options", lambda: boot_options(root)
