"""
Trees of /sys/class/infiniband as Linux shows them (drivers/infiniband/core/sysfs.c), made up, not recorded.

Two InfiniBand ports, two RoCE ports, InfiniBand with a slow RoCE bond beside it, or two of Amazon's EFA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

UNSET = "0000:0000:0000:0000:0000:0000:0000:0000"
HARDWARE = "run/rdma"
"""Where the PCI functions stand that the devices point to."""
COUNTERS = (
    "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery", "local_link_integrity_errors",
    "port_rcv_constraint_errors", "port_rcv_data", "port_rcv_errors", "port_rcv_packets",
    "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors", "port_xmit_constraint_errors",
    "port_xmit_data", "port_xmit_discards", "port_xmit_packets", "port_xmit_wait", "symbol_error",
    "VL15_dropped",
)  # fmt: skip
HW_COUNTERS = {
    "mlx5_core": (
        "duplicate_request", "implied_nak_seq_err", "local_ack_timeout_err", "np_cnp_sent",
        "np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence", "packet_seq_err",
        "req_transport_retries_exceeded", "rnr_nak_retry_err", "roce_adp_retrans", "roce_slow_restart",
        "rp_cnp_handled",
    ),
    "efa": (
        "impaired_remote_conn_events", "retrans_pkts", "retrans_timeout_events", "rx_drops",
        "unresponsive_remote_events",
    ),
}  # fmt: skip


@dataclass
class Tree:
    """Files and links below a root, by their paths without the first slash."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def changed(self, changes: Mapping[str, str | None]) -> Tree:
        """Other texts, below sys/class/infiniband if not from /; a folder or file of None is gone."""
        for path, text in changes.items():
            own = path[1:] if path.startswith("/") else f"sys/class/infiniband/{path}"
            if text is not None:
                self.files[own] = text
            for table in (self.files, self.links) if text is None else ():
                for known in [k for k in table if f"{k}/".startswith(f"{own}/")]:
                    del table[known]
        return self

    def write(self, root: Path) -> None:
        """The tree below a directory of one's own; links lead to what is below it too."""
        for folder in self.folders:
            (root / folder).mkdir(parents=True, exist_ok=True)
        for path, text in self.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"{text}\n")
        for path, target in self.links.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / target).mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(root / target)


def add(
    tree: Tree, name: str, bus: str, netdev: str = "", address: str = "", rate: str = "200 Gb/sec (4X HDR)"
) -> None:
    """One device with one port: RoCE where it has an address, EFA by its name, else InfiniBand."""
    efa = name.startswith("rdmap")
    layer = "Unspecified" if efa else "Ethernet" if address else "InfiniBand"
    driver = "efa" if efa else "mlx5_core"
    device, own = f"sys/class/infiniband/{name}", f"{HARDWARE}/{bus}"
    tail = f"{int(bus[5:7], 16):04x}"
    tree.links |= {f"{device}/device": own, f"{own}/driver": f"{HARDWARE}/drivers/{driver}"}
    tree.files |= {
        f"{device}/node_type": "7: unspecified" if efa else "1: CA",
        f"{device}/fw_ver": "0.0.0.0" if efa else "20.31.1014",
        f"{device}/hca_type": "" if efa else "MT4123",
        f"{device}/board_id": "" if efa else "MT_0000000222",
        f"{device}/sys_image_guid": f"1070:fd03:0011:{tail}",
        f"sys/class/infiniband_verbs/uverbs{len(tree.links) // 2 - 1}/ibdev": name,
    }
    link_local = f"fe80:0000:0000:0000:1070:fdff:fe11:{tail}"
    mapped = "0000:0000:0000:0000:0000:ffff:" + hexadecimal(address) if address else UNSET
    port = f"{device}/ports/1"
    tree.files |= {
        f"{port}/state": "4: ACTIVE",
        f"{port}/phys_state": "5: LinkUp",
        f"{port}/link_layer": layer,
        f"{port}/rate": rate,
        f"{port}/lid": "0x9" if layer == "InfiniBand" else "0x0",
        f"{port}/sm_lid": "0x6" if layer == "InfiniBand" else "0x0",
        f"{port}/pkeys/0": "0xffff",
        f"{port}/gids/0": link_local,
        f"{port}/gid_attrs/types/0": "IB/RoCE v1",
        **{f"{port}/counters/{counter}": "00000000" for counter in COUNTERS},
        **{f"{port}/hw_counters/{counter}": "00000000" for counter in HW_COUNTERS[driver]},
    }
    for index, gid in enumerate((link_local, link_local, mapped, mapped) if address else ()):
        tree.files[f"{port}/gids/{index}"] = gid
        tree.files[f"{port}/gid_attrs/types/{index}"] = "RoCE v2" if index % 2 else "IB/RoCE v1"
        tree.files[f"{port}/gid_attrs/ndevs/{index}"] = netdev
    if netdev:
        tree.files |= {f"{own}/net/{netdev}/dev_port": "0", f"{own}/net/{netdev}/dev_id": "0x0"}


def hexadecimal(address: str) -> str:
    """
    An IPv4 address as the last two groups of a GID.

    >>> hexadecimal("10.0.0.11")
    '0a00:000b'
    """
    a, b, c, d = (int(part) for part in address.split("."))
    return f"{a:02x}{b:02x}:{c:02x}{d:02x}"


def tree(kind: str, addresses: Mapping[str, str]) -> Tree:
    """
    A host's devices: "ib", "roce", "mixed" or "efa"; RoCE ports have the addresses of eth2 and eth3.

    The user's side is there as well: a library that loads, with its driver for the adapter.
    """
    made = Tree(folders={f"{HARDWARE}/lib/libibverbs", "sys/class/infiniband"})
    made.files[f"{HARDWARE}/lib/libibverbs/libmlx5-rdmav34.so"] = ""
    made.files[f"{HARDWARE}/lib/libibverbs/libefa-rdmav34.so"] = ""
    if kind in ("ib", "mixed"):
        add(made, "mlx5_0", "0000:2e:00.0", "ib0")
    if kind == "ib":
        add(made, "mlx5_1", "0000:a8:00.0")
    if kind == "mixed":
        add(made, "mlx5_bond_0", "0000:41:00.0", "eth2", addresses["eth2"], "50 Gb/sec (2X EDR)")
    if kind == "roce":
        add(made, "mlx5_0", "0000:2e:00.0", "eth2", addresses["eth2"], "100 Gb/sec (4X EDR)")
        add(made, "mlx5_1", "0000:a8:00.0", "eth3", addresses["eth3"], "100 Gb/sec (4X EDR)")
    if kind == "efa":
        add(made, "rdmap0s6", "0000:00:06.0", rate="100 Gb/sec (4X EDR)")
        add(made, "rdmap0s7", "0000:00:07.0", rate="100 Gb/sec (4X EDR)")
    return made
