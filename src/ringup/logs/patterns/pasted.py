"""What people paste beside a log: stacks, sockets, interfaces, packages, processes."""

from __future__ import annotations

from ringup.logs.patterns.tags import tag

# fmt: off
TAGS = (
    # py-spy dump
    tag("stack-process", "context", r"^Process (?P<pid>\d+)(?: \(rank (?P<rank>\d{1,6})\))?: \S", keep=400),
    tag("stack-thread", "context", r"^Thread (?:0x[0-9A-Fa-f]+|\d+) \((?:active|idle|active\+gil)[^)]*\)(?:: \"(?P<name>[^\"]+)\")?", keep=400),
    tag("stack-frame", "context", r"^ {2,8}(?P<function>[\w<>.]{1,80}) \((?P<file>[\w./@+-]{1,200}\.pyx?):(?P<number>\d{1,6})\)\s*$", keep=2000),
    # ss and netstat
    tag("syn-sent", "context",
        r"^(?:tcp\s+)?SYN-SENT\s+\d+\s+\d+\s+\S+\s+(?P<address>[\w.:]+?):(?P<port>\d+)\b",
        r"^tcp6?\s+\d+\s+\d+\s+\S+\s+(?P<address>[\w.:]+?):(?P<port>\d+)\s+SYN_SENT"),
    tag("listening", "context",
        r"^(?:tcp\s+)?LISTEN\s+\d+\s+\d+\s+(?P<address>\S{1,60}):(?P<port>\d+)\s+\S+(?:\s+users:\(\(\"(?P<program>[^\"]{1,40})\",pid=(?P<pid>\d+))?",
        r"^tcp6?\s+\d+\s+\d+\s+(?P<address>\S{1,60}):(?P<port>\d+)\s+\S+\s+LISTEN\s+(?:(?P<pid>\d+)/(?P<program>\S{1,40}))?",
        keep=100),
    # ip addr, ip -br addr
    tag("offered-interface", "context",
        r"^\d{1,4}: (?P<name>[\w.-]{1,32})(?:@\S{1,32})?: <[A-Z_,-]{2,120}> .{0,160}?\bstate (?P<state>UP|DOWN|UNKNOWN)\b",
        r"^(?P<name>[\w.-]{1,32})(?:@\S{1,32})? {2,30}(?P<state>UP|DOWN|UNKNOWN) {2,30}(?:(?P<address>\d[\d.]{6,14})/\d{1,2}\b)?",
        keep=64),
    tag("own-address", "context", r"^\s*inet (?P<address>\d[\d.]{6,14})/\d{1,2}\b", keep=64),
    tag("installed-nccl", "context", r"^nvidia-nccl-cu\d\d\s+(?P<version>2\.[\d.]{1,12})"),
    # nvidia-smi
    tag("gpu-process", "context",
        r"^\|\s+\d{1,3}\s+\S+\s+\S+\s+(?P<pid>\d{2,8})\s+C(?:\+G)?\s+(?P<program>\S{1,200})\s+(?P<mib>\d{1,8})MiB", keep=64),
)
