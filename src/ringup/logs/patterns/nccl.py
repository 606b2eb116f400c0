"""Lines in which NCCL and RCCL report the hardware found and their choices."""

from __future__ import annotations

from ringup.logs.patterns.tags import tag
from ringup.nccl import lines

# fmt: off
TAGS = (
    tag("nccl-version", "context", r"(?:NCCL|RCCL) version ?:? ?(?P<version>\d+\.\d+[\d.]*)"),
    tag("cuda-driver", "", r"cudaDriverVersion (?P<version>\d+)"),
    tag("env-set", "context setting",
        lines.ENVIRONMENT,
        r"(?:^|[\s;'\"])(?:-x )?(?P<name>(?:NCCL|RCCL|GLOO)_[A-Z0-9_]+)=(?P<value>[^\s;'\"`\\]+)",
        keep=200),
    tag("bootstrap", "choice",
        lines.BOOTSTRAP,
        r"Bootstrap ?: Using (?P<interface>[\w.-]+):(?P<address>\d+)\s*$"),
    tag("net-using", "choice",
        lines.DEVICES,
        r"NET ?: Using interface (?P<list>[\w.@-]+:\S+<\d+>)"),
    tag("socket-list", "choice", r"(?P<list>\[\d+\][\w.@-]+:[0-9A-Fa-f.:]+(?:%[\w.@-]+)?<0>)", keep=40),
    tag("using-network", "choice", lines.NETWORK),
    tag("ib-none", "", r"NET/IB ?: No device found"),
    tag("ib-library-missing", "detail establishing",
        r"Failed to open libibverbs|libibverbs\.so.*(?:cannot open|No such file)"),
    tag("ib-driver-missing", "",
        r"no userspace device-specific driver found for \S+|couldn't load driver '\S+'"),
    tag("plugin-none", "", lines.NO_PLUGIN),
    tag("plugin-loaded", "",
        r"Loaded net plugin (?P<plugin>.+?) \(|Plugin Path : (?P<path>\S+)|P2P plugin (?P<p2p>\S+)"
        r"|Successfully loaded external network plugin (?P<library>\S+)|NET/OFI (?:Using|Initializing) aws-ofi-nccl"
        r"|Selected [Pp]rovider is (?P<provider>\w+)"),
    tag("gpu-datacentre", "", r"(?:nvidia|tesla|instinct).*\b(?:[PVAH]100|[AH]800|H20|H200|[BG]B?[23]00|GH200|MI\d{3}X?)\b"),
    tag("gdr-disabled", "detail", r"GPU Direct RDMA Disabled for (?P<what>.*)"),
    tag("init", "",
        r"comm (?P<comm>0x[0-9a-fA-F]+) rank (?P<rank>\d+) nranks (?P<nranks>\d+)(?P<more>.*?)- ?Init (?P<state>START|COMPLETE)",
        keep=512),
    tag("init-timings", "",
        r"Init timings(?: - (?P<function>\w+))?: rank (?P<rank>\d+) nranks (?P<nranks>\d+) total (?P<seconds>[\d.]+)"),
    tag("topology", "",
        r"rank (?P<rank>\d+) nRanks (?P<nranks>\d+) nNodes (?P<nodes>\d+) localRanks (?P<local>\d+)"),
    tag("channel", "",
        r"(?:(?:Channel|Ring|CollNet) (?P<channel>\d+)(?:/\w+)? ?: |INFO )(?P<from>\d+)(?:\[\w+\])?(?: (?:-> )?(?P<to>\d+)(?:\[\w+\])?)?"
        r"(?: \[(?P<way>send|receive)\])? via (?P<via>\S(?:(?! comm 0x| nRanks).){0,120})",
        keep=64),
    tag("channel-loose", "", r"Channel \d+ -> (?P<via>NET/\S+)"),
    tag("nvls", "", r"NVLS multicast support is (?P<no>not )?available on dev"),
    # Only the process that printed them is read.
    tag("set-up", "",
        r"comm 0x[0-9a-fA-F]+ rank \d+ nranks \d+\s*$|Setting affinity for GPU|ncclTopoGetCpuAffinity"
        r"|Could not get speed from|Could not find real path of /sys|NET/\w+ ?: Using\s*$"
        r"|GPU Direct RDMA (?:Enabled for|.*enabled)|DMA-BUF is available on GPU",
        r"Channel \d+(?:/\d+)? : +\d+(?: +\d+)+\s*$"),
    tag("connected", "", r"Connected (?:all (?:rings|trees)|binomial|NVLS tree)"),
    tag("virtual-device", "", r"Made virtual device \[(?P<index>\d+)\] name=(?P<name>\S+)"),
    tag("unwind", "failure context nccl",
        r"(?P<source>[\w/+.-]+\.(?:cc|cu|h|c)):(?P<number>\d+) -> (?P<code>\d+)",
        keep=12),
    tag("coll", "",
        r"NCCL INFO (?P<kind>\w+): opCount (?P<op>[0-9a-f]+) .{0,120}?count (?P<count>\d+) datatype (?P<type>\d+) .{0,30}?root (?P<root>\d+) comm (?P<comm>0x\w+) \[nranks=(?P<nranks>\d+)\]",
        keep=4),
    # How fast ports and slots are (subsystems NET and GRAPH).
    tag("ib-speed", "", r"NET/IB ?: \[\d+\] (?P<device>[\w.]+):\S{1,40}/\w+ provider=\S{1,40} speed=(?P<speed>\d{1,9})", keep=64),
    tag("pci-path", "", r"\+ PCI\[(?P<speed>\d{1,5}\.\d)\d*\] - (?P<kind>GPU|NIC)/(?P<id>[\w-]+)", keep=64),
)
