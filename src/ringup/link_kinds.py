"""The kernel's names for kinds of network devices -> ringup's kinds; runs on nodes too: Python 3.6."""

KINDS = {
    "bridge": "bridge", "openvswitch": "bridge", "veth": "veth", "bond": "bond", "team": "bond",
    "vlan": "vlan", "macvlan": "macvlan", "macvtap": "macvlan", "ipvlan": "macvlan", "ipvtap": "macvlan",
    "tun": "tunnel", "gre": "tunnel", "gretap": "tunnel", "ip6gre": "tunnel", "ip6gretap": "tunnel",
    "ipip": "tunnel", "sit": "tunnel", "ip6tnl": "tunnel", "vxlan": "tunnel", "geneve": "tunnel",
    "wireguard": "tunnel", "vti": "tunnel", "vti6": "tunnel", "xfrm": "tunnel", "ipoib": "infiniband",
    "dummy": "virtual", "ifb": "virtual", "vrf": "virtual",
}  # fmt: skip
