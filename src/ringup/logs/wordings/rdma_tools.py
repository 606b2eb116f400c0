"""What a host's own RDMA commands print, where somebody pasted them into a log."""

from __future__ import annotations

from ringup.logs.wordings import say

LISTED = (
    say(
        "ibstatus-device",
        r"Infiniband device '(?P<device>[\w.]+)' port (?P<port>\d+) status",
        "infiniband device",
    ),
    say("ibstatus-state", r"^\s*state:\s+\d: (?P<state>\w+)", "state:"),
    say("ibstatus-layer", r"link_layer:\s+(?P<layer>\w+)", "link_layer:"),
    say(
        "ibdev2netdev",
        r"(?P<device>[\w.]+) port (?P<port>\d+) ==> (?P<netdev>\S+) \((?P<state>\w+)\)",
        " ==> ",
    ),
    say(
        "rdma-link",
        r"link (?P<device>[\w.]+)/(?P<port>\d+) .*?state (?P<state>[A-Z]+).*?(?:netdev (?P<netdev>\S+))?\s*$",
        "link ",
    ),
)
