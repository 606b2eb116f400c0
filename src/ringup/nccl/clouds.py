"""
Variables that belong to one cloud's machines, so that those left from another are recognised.

Names and values as the clouds' own guides set them: Google's GPUDirect-TCPX and FasTrak (TCPXO) and gIB
plugins, the aws-ofi-nccl plugin with EFA, Azure's ND topology files, Scnet's presets for its RoCE network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Cloud:
    """What gives a cloud's settings away, and how its machines call themselves (DMI vendor and product)."""

    name: str
    machines: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] | None = None
    """Variable -> parts of a value, in small letters, that only this cloud uses."""


CLOUDS = (
    Cloud(
        "Google Cloud",
        ("google",),
        ("NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_"),
        {
            "NCCL_NET": ("gpudirecttcpx", "fastrak", "gib"),
            "NCCL_NET_PLUGIN": ("tcpx", "fastrak", "gib"),
            "NCCL_TUNER_PLUGIN": ("tcpx", "fastrak", "gib"),
            "NCCL_TUNER_CONFIG_PATH": ("/usr/local/gib", "tcpx"),
        },
    ),
    Cloud(
        "AWS",
        ("amazon",),
        ("OFI_NCCL_", "FI_EFA_"),
        {
            "FI_PROVIDER": ("efa",),
            "NCCL_NET": ("aws libfabric", "libfabric", "ofi"),
            "NCCL_NET_PLUGIN": ("ofi",),
            "NCCL_TUNER_PLUGIN": ("ofi",),
        },
    ),
    Cloud("Azure", ("microsoft",), (), {"NCCL_TOPO_FILE": ("/opt/microsoft/", "ndv4", "ndv5", "ndv2")}),
)

SCNET = {
    "NCCL_IB_TC": "136",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_SOCKET_IFNAME": "eth",
    "NCCL_DEBUG": "INFO",
    "NCCL_IB_HCA": "mlx5",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_IB_QPS_PER_CONNECTION": "8",
    "NCCL_IB_DISABLE": "0",
}
"""What Scnet presets for its RoCE network, whose pods have eth0 and mlx5 devices."""
ENOUGH = 5
"""Of Scnet's eight: fewer are anybody's."""


def owner(name: str, value: str) -> Cloud | None:
    """
    The one cloud whose setting this is, None for anybody's.

    >>> owner("NCCL_FASTRAK_NUM_FLOWS", "2").name, owner("NCCL_NET", "Socket")
    ('Google Cloud', None)
    """
    for cloud in CLOUDS:
        parts = (cloud.values or {}).get(name, ())
        if name.startswith(cloud.prefixes) or any(part in value.lower() for part in parts):
            return cloud
    return None


def is_on(cloud: Cloud, product: str) -> bool:
    """Whether a machine that calls itself so is this cloud's."""
    return any(word in product.lower() for word in cloud.machines)


def scnet_presets(environment: Mapping[str, str]) -> list[str]:
    """Names of Scnet's presets that are set as it sets them; [] for so few that they are anybody's."""
    same = [name for name, value in SCNET.items() if environment.get(name) == value]
    return same if len(same) >= ENOUGH else []
