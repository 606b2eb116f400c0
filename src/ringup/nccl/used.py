"""Which device each GPU of a node uses, where its PCI tree (or the matrix of distances) tells enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ringup.nccl import topology
from ringup.nccl.known import Known, Notes
from ringup.parse.topology import Topology


def devices_used(
    known: Known, environment: Mapping[str, str], devices: list[topology.Where], notes: Notes
) -> tuple[topology.Use, ...]:
    """Which device each GPU uses, where the tree (or the matrix) tells enough."""
    gpus = sorted(way[-1].gpu for _, way in known.topology.devices() if way[-1].gpu is not None)
    with_rates = [_with_dump_speed(known.topology, d) for d in devices]
    if known.topology.cpus:
        level = topology.gdr_level(environment)
        found = topology.paths(known.topology, with_rates, known.version, level)
    elif known.matrix.distance:
        found = topology.matrix_paths(known.matrix, with_rates)
        notes.doubts.append("nvidia-smi topo -m tells no PCI bandwidth: gen 4 x16 is assumed")
    else:
        if len(devices) > 1:
            notes.because.append("which of them a GPU uses depends on the PCI tree (--topo FILE)")
        return ()
    lost = sorted({d.name for d in devices} - {n for options in found.values() for n in options})
    if lost and gpus and len(devices) == 1:
        return tuple(topology.Use(gpu, devices[0].name, "the only one") for gpu in gpus)
    if lost or not found:
        what = ", ".join(lost) or "GPUs"
        shown = "PCI tree" if known.is_live_tree else "topology given"
        notes.doubts.append(f"the {shown} does not show {what}: which device a GPU uses cannot be told")
        return ()
    if known.is_live_tree:
        notes.doubts += _doubts_of_live_tree(known, environment, len(found))
    made = topology.choose(found, environment, known.version)
    notes.doubts += made.doubts
    notes.because += [f"GPU {u.gpu} uses {u.device}: {u.because}" for u in made.uses]
    return made.uses


def _doubts_of_live_tree(known: Known, environment: Mapping[str, str], shown: int) -> list[str]:
    """What makes the tree that sysfs shows less than NCCL's own."""
    node, doubts = known.node, []
    doubts += [
        f"{name}={environment[name]} is read instead of the tree in sysfs (see `ringup predict --topo`)"
        for name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")
        if environment.get(name)
    ]
    if node.virtual_machine:
        doubts.append("a virtual machine's PCI tree need not be the real one")
    if shown < node.gpu_count:
        doubts.append(f"the PCI tree shows {shown} of {node.gpu_count} GPUs")
    return doubts


def _with_dump_speed(tree: Topology, device: topology.Where) -> topology.Where:
    """The speed NCCL itself measured, where the dump lists this very device."""
    listed = {n.name: n.speed_mbit_s for _, way in tree.devices() for n in way[-1].nets}
    listed.update({n.name: n.speed_mbit_s for cpu in tree.cpus for n in cpu.nets})
    names_of = device.place.split("/")
    known = [listed[name] for name in names_of[:1] if listed.get(name, 0) > 0]
    if known and (not device.speed_mbit_s or "+" not in device.name):
        return dataclasses.replace(device, speed_mbit_s=float(known[0]))
    return device
