"""What NCCL and RCCL say of what they found and chose."""

from __future__ import annotations

from ringup.logs.wordings import say

SETUP = (
    say("nccl-version", r"(?:NCCL|RCCL) version ?:? ?(?P<version>\d+\.\d+[\d.]*)", "ccl version"),
    say("cuda-driver", r"cudaDriverVersion (?P<version>\d+)", "cudadriverversion"),
    say(
        "env-set",
        r"\b(?P<name>(?:NCCL|RCCL|GLOO|FI|UCX)_[A-Z0-9_]+) set (?:by environment )?to (?P<value>\S.*?)\.?\s*$",
        " set to ",
        " set by environment to ",
    ),
    say(
        "env-set",
        r"(?:^|[\s;'\"])(?:-x )?(?P<name>(?:NCCL|RCCL|GLOO)_[A-Z0-9_]+)=(?P<value>[^\s;'\"`\\]+)",
        "nccl_",
        "gloo_",
    ),
    say(
        "bootstrap",
        r"Bootstrap ?: Using (?:\[0\])?(?P<interface>[\w.@-]+):(?P<address>[0-9A-Fa-f.:]+(?:%[\w.@-]+)?)<\d+>",
        "bootstrap : using",
        "bootstrap: using",
    ),
    say(
        "bootstrap",
        r"Bootstrap ?: Using (?P<interface>[\w.-]+):(?P<address>\d+)\s*$",
        "bootstrap : using",
        "bootstrap: using",
    ),
    say(
        "net-using",
        r"NET/(?P<net>[\w ]+?) ?: Using (?P<list>(?:\[\d|=?\{|\[RO\]|;).*)$",
        "net/",
    ),
    say("net-using", r"NET ?: Using interface (?P<list>[\w.@-]+:\S+<\d+>)", "using interface"),
    say("socket-list", r"(?P<list>\[\d+\][\w.@-]+:[0-9A-Fa-f.:]+(?:%[\w.@-]+)?<\d+>)", "<0>"),
    say("net-lines-begin", r"NET/(?P<net>\w+) ?: Using\s*$", "using"),
    say(
        "using-network",
        r"Using (?:internal )?network (?P<net>[A-Za-z][\w ./+-]*?)\s*$",
        "using network",
        "using internal network",
    ),
    say("ib-none", r"NET/IB ?: No device found", "no device found"),
    say(
        "ib-library-missing",
        r"Failed to open libibverbs|libibverbs\.so.*(?:cannot open|No such file)",
        "libibverbs",
    ),
    say(
        "ib-driver-missing",
        r"no userspace device-specific driver found for \S+|couldn't load driver '\S+'",
        "no userspace device-specific",
        "couldn't load driver",
    ),
    say(
        "plugin-none",
        r"No plugin found|Could not find: ?libnccl-net|libnccl-net\.so: cannot open",
        "plugin found",
        "libnccl-net",
    ),
    say(
        "plugin-loaded",
        r"Loaded net plugin (?P<plugin>.+?) \(|Plugin Path : (?P<path>\S+)|P2P plugin (?P<p2p>\S+)"
        r"|Successfully loaded external network plugin (?P<library>\S+)|NET/OFI (?:Using|Initializing) aws-ofi-nccl"
        r"|Selected [Pp]rovider is (?P<provider>\w+)",
        "loaded net plugin",
        "plugin path",
        "p2p plugin",
        "external network plugin",
        "aws-ofi-nccl",
        "selected provider",
    ),
    say(
        "gpu-datacentre",
        r"\b(?:[PVAH]100|[AH]800|H20|H200|[BG]B?[23]00|GH200|MI\d{3}X?)\b",
        "nvidia",
        "tesla",
        "instinct",
    ),
    say("gdr-disabled", r"GPU Direct RDMA Disabled for (?P<what>.*)", "gpu direct rdma disabled"),
    say(
        "gdr-enabled",
        r"GPU Direct RDMA (?:Enabled for|.*enabled)|DMA-BUF is available on GPU",
        "gpu direct rdma",
        "dma-buf is available",
    ),
    say(
        "init",
        r"comm (?P<comm>0x[0-9a-fA-F]+) rank (?P<rank>\d+) nranks (?P<nranks>\d+)(?P<more>.*?)- ?Init (?P<state>START|COMPLETE)",
        "init start",
        "init complete",
    ),
    say(
        "init-timings",
        r"Init timings(?: - (?P<function>\w+))?: rank (?P<rank>\d+) nranks (?P<nranks>\d+) total (?P<seconds>[\d.]+)",
        "init timings",
    ),
    say(
        "comm-begin",
        r"comm (?P<comm>0x[0-9a-fA-F]+) rank (?P<rank>\d+) nranks (?P<nranks>\d+)\s*$",
        " nranks ",
    ),
    say(
        "topology",
        r"rank (?P<rank>\d+) nRanks (?P<nranks>\d+) nNodes (?P<nodes>\d+) localRanks (?P<local>\d+)",
        " nnodes ",
    ),
    say(
        "channel",
        r"(?:(?:Channel|Ring|CollNet) (?P<channel>\d+)(?:/\w+)? ?: |INFO )(?P<from>\d+)(?:\[\w+\])? (?:-> (?P<to>\d+)(?:\[\w+\])? )?"
        r"(?:\[(?P<way>send|receive)\] )?via (?P<via>\S.*?)(?: comm 0x\w+.*| nRanks.*)?\s*$",
        " via ",
    ),
    say("channel-loose", r"Channel \d+ -> (?P<via>NET/\S+)", "-> net/"),
    say("nvls", r"NVLS multicast support is (?P<no>not )?available on dev", "nvls multicast"),
    say("ring-order", r"Channel \d+(?:/\d+)? : +(?P<order>\d+(?: +\d+)+)\s*$", "channel "),
    say("connected", r"Connected (?:all (?:rings|trees)|binomial|NVLS tree)", "connected "),
    say("affinity", r"Setting affinity for GPU|ncclTopoGetCpuAffinity", "affinity"),
    say(
        "virtual-device", r"Made virtual device \[(?P<index>\d+)\] name=(?P<name>\S+)", "made virtual device"
    ),
    say("unwind", r"(?P<source>[\w/+.-]+\.(?:cc|cu|h|c)):(?P<number>\d+) -> (?P<code>\d+)", " -> "),
    say("nvml-affinity-note", r"Could not get speed from|Could not find real path of /sys", "could not "),
    say(
        "coll",
        r"NCCL INFO (?P<kind>\w+): opCount (?P<op>[0-9a-f]+) .*?count (?P<count>\d+) datatype (?P<type>\d+) .*?root (?P<root>\d+) comm (?P<comm>0x\w+) \[nranks=(?P<nranks>\d+)\]",
        "opcount ",
    ),
    say(
        "made-of",
        # How a release phrases harmless lines tells which release it is, where no version line is printed.
        r"(?P<v0204>No plugin found \(libnccl-net\.so\)\.)|(?P<v0217>Plugin load \(\S+\) returned \d)|(?P<v0219>NET/Plugin ?: dlerror=)"
        r"|(?P<v0221>NET/Plugin: No plugin found)|(?P<v0226>NET/Plugin: Could not find: \S+?\. *$)|(?P<v0222>Could not find: \S+\. Using internal network)"
        r"|(?P<v0224>Bootstrap: Using )|(?P<vold>Bootstrap : Using )|(?P<vdev>Using non-device net plugin)|(?P<v0227>Assigned NET plugin)",
        "plugin",
        "bootstrap",
    ),
)
