"""GPUs and their PCI tree as the facts script reads them: a tree of files and a fake nvidia-smi."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from ringup.agent.facts import gpu
from ringup.collectors import gpus, probe_script
from ringup.collectors.probe_script import facts_script
from ringup.model import Gpu, GpuProcess, KernelEvent, Node, RdmaPort
from ringup.nccl import pci, topology
from ringup.nccl.topology import Where
from ringup.parse import gpus as parse
from tests.gpu_machine import CARDS, GEN4, GPUS, RECORDED, GpuMachine
from tests.guards import wait_for
from tests.test_facts import ask, read, request_of

PARTS = ("system", "gpu", "pci")


@pytest.fixture
def machine(tmp_path: Path) -> GpuMachine:
    return GpuMachine(tmp_path)


def asked(machine: GpuMachine, **options: Any) -> Node:
    path = f"{machine.root}/bin:{os.environ['PATH']}"
    env = {"PATH": path, **options.pop("env", {})}
    options.setdefault("scale", 4.0)  # a busy machine is no fault of theirs
    return ask(request_of(root=str(machine.root)), parts=PARTS, env=env, **options)


def unknown_of(node: Node) -> dict[str, str]:
    """What is unknown beside what a made-up root has not got."""
    wanted = ("gpu", "pci", "kernel_events", "processor", "virtual_machine", "boot_options")
    return {k: v for k, v in node.unknown.items() if k.startswith(wanted)}


def test_a_gpu_machine_tells_all_of_itself(machine: GpuMachine) -> None:
    node = asked(machine)
    assert unknown_of(node) == {}
    assert [g.bus_id for g in node.gpus] == list(GPUS)
    gpu = node.gpus[1]
    assert (gpu.name, gpu.memory_bytes, gpu.used_bytes) == ("NVIDIA H100 80GB HBM3", 81559 << 20, 0)
    assert gpu.throttle_reasons == 1
    assert (gpu.ecc_uncorrected, gpu.remap_pending, gpu.retired_pages) == (0, False, None)
    assert (gpu.is_mig, gpu.compute_mode, gpu.power_limit_w) == (False, "Default", 700.0)
    assert (gpu.fabric_state, gpu.fabric_status, gpu.recovery_action) == ("Completed", "Success", "None")
    assert len(gpu.nvlinks) == 18 and gpu.nvlinks[17].gbyte_s == 26.562 and gpu.nvlinks[0].errors == 0
    assert [(x.first, x.second, x.peer, x.path) for x in node.gpu_links][:2] == [
        (0, 1, "OK", "NV18"),
        (0, 2, "OK", "NV18"),
    ]
    driver = node.gpu_driver
    assert (driver.version, driver.is_open, driver.peer_memory) == ("590.48.01", True, "nvidia_peermem")
    assert (driver.error, driver.lost, driver.silent_s, driver.refused) == ("", (), 0.0, ())
    assert node.gpu_processes == () and node.kernel_events == ()


def test_the_tree_above_gpus_and_cards_is_whole(machine: GpuMachine) -> None:
    node = asked(machine)
    by_bus = {d.bus_id: d for d in node.pci}
    gpu = by_bus["0000:1a:00.0"]
    assert gpu.above == ("0000:16:01.0", "0000:17:00.0", "0000:18:01.0")
    assert (gpu.root, gpu.numa_node, gpu.driver, gpu.is_nvidia_gpu) == ("pci0000:16", 0, "nvidia", True)
    assert (gpu.link_gt_s, gpu.max_link_width, gpu.iommu_group, gpu.iommu_type) == (32.0, 16, 0, "identity")
    assert (gpu.correctable_errors, gpu.fatal_errors) == (0, 0)
    assert by_bus["0000:97:00.0"].is_bridge and len(node.pci) == 16
    assert node.processor.vendor == "GenuineIntel" and node.virtual_machine == ""


def test_the_access_control_register_is_read_where_root_may(machine: GpuMachine) -> None:
    config = bytearray(512)
    config[256:260] = (0x0001 | 0x1 << 16 | 0x148 << 20).to_bytes(4, "little")  # AER, then the next one
    config[0x148:0x14C] = (0x000D | 0x1 << 16).to_bytes(4, "little")
    config[0x14E:0x150] = (0x1D).to_bytes(2, "little")
    for length in (512, 64):
        (machine.function("0000:18:00.0") / "config").write_bytes(config[:length])
        told = {d.bus_id: d.acs_control for d in asked(machine).pci}["0000:18:00.0"]
        assert told == (0x1D if length == 512 else None)


def test_bus_errors_are_counted_without_what_probing_causes(machine: GpuMachine) -> None:
    machine.set_pci(GPUS[2], aer_dev_nonfatal="DLP 1\nUnsupReq 4\nTOTAL_ERR_NONFATAL 5")
    node = ask(request_of(root=str(machine.root)), parts=("counters",), scale=4.0)
    by_name = {counted.of: dict(counted.totals) for counted in node.counters}
    assert by_name[f"pci:{GPUS[2]}"] == {"nonfatal_errors": 1} and by_name[f"pci:{GPUS[0]}"] == {}


def test_distances_are_those_nvidia_smi_shows(machine: GpuMachine) -> None:
    node = asked(machine)
    by_bus = {d.bus_id: d for d in node.pci}
    gpu, other = by_bus[GPUS[0]], by_bus[GPUS[3]]
    assert pci.distance(gpu, by_bus[CARDS[0]]) == "PIX"
    assert pci.distance(gpu, other) == "SYS"
    assert pci.distance(gpu, by_bus[CARDS[1]]) == "SYS"


def test_nccl_would_build_one_element_a_switch(machine: GpuMachine) -> None:
    machine.set_pci(CARDS[1], max_link_speed=GEN4)
    node = asked(machine)
    ports = tuple(RdmaPort(f"mlx5_{k}", 1, rate_gbit_s=400.0, bus_id=bus) for k, bus in enumerate(CARDS))
    tree = pci.topology(dataclasses.replace(node, rdma_ports=ports))
    assert [(c.numa, c.vendor, len(c.children)) for c in tree.cpus] == [
        (0, "GenuineIntel", 1),
        (1, "GenuineIntel", 1),
    ]
    assert [way[-1].bus_id for _, way in tree.devices()][:4] == ["0000:17:00.0", *GPUS[:2], CARDS[0]]
    where = [Where(p.device, f"{p.device}/{p.bus_id}", 400_000) for p in ports]
    found = topology.paths(tree, where, (2, 27, 7))
    assert found[0]["mlx5_0"] == topology.Path(48.0, "PIX", True)
    assert found[0]["mlx5_1"] == topology.Path(22.0, "SYS")
    assert found[3]["mlx5_1"] == topology.Path(24.0, "PIX", True)


def test_a_field_an_old_driver_does_not_know_loses_no_other(machine: GpuMachine) -> None:
    machine.says("refuses", "gpu_recovery_action fabric.state fabric.status")
    node = asked(machine)
    assert len(node.gpus) == 4 and node.gpus[0].recovery_action == ""
    assert set(node.gpu_driver.refused) == {"gpu_recovery_action", "fabric.state", "fabric.status"}


def test_the_newer_name_of_a_field_is_asked_where_the_older_is_gone(machine: GpuMachine) -> None:
    table = (machine.smi / "gpus.csv").read_text()
    machine.says("gpus.csv", table.replace("clocks_throttle_reasons", "clocks_event_reasons"))
    node = asked(machine)
    assert node.gpus[0].throttle_reasons == 1 and node.gpu_driver.refused == ()


IN_KERNEL = "import ctypes; c = ctypes.CDLL(None); c.vfork() or c.prctl(1, 9) or c.sleep(30)"
"""A parent waits for its vfork()ed child in uninterruptible sleep (vfork(2)); the child ends with it."""


@pytest.mark.slow
@pytest.mark.parametrize(("others", "stuck"), [([], True), ([["/bin/sleep", "30"]], False)])
def test_a_driver_hangs_only_where_none_of_those_that_ask_it_moves(
    others: list[list[str]], stuck: bool
) -> None:
    words = [[sys.executable, "-c", IN_KERNEL], *others]
    running = [gpu.command(w) for w in words]
    pid = running[0].pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    # Reading a file from a disk it may sleep so for a moment, before there is a child.
    wait_for(lambda: children.read_text() and gpu.moves(pid) is not None, "the parent's sleep")
    gpu.run_until(running, time.monotonic())
    assert [gpu.answer_of(child)["stuck"] for child in running] == [stuck] * len(words)


def test_nvidia_smi_that_hangs_holds_up_nothing_else(
    machine: GpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.says("hangs", "")
    monkeypatch.setitem(probe_script.LIMITS_S, "gpu", 1.0)  # its own limit alone is short
    node = asked(machine)
    assert "no answer within" in node.unknown["gpus"]
    assert node.gpu_driver.silent_s > 0.5 and node.gpu_driver.version == "590.48.01"
    assert node.pci and "kernel_events" not in node.unknown


def test_a_library_of_another_release_is_told_in_nvidia_smis_words(machine: GpuMachine) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 595.71"
    machine.says("fails", f"18 {said}")
    node = asked(machine)
    assert node.gpu_driver.library == "595.71" and "Driver/library version mismatch" in node.gpu_driver.error
    assert "exit status 18" in node.unknown["gpus"]


def test_a_gpu_that_does_not_answer_is_lost_and_the_others_are_told(machine: GpuMachine) -> None:
    machine.forget_gpu(2)
    machine.says("warns", "Unable to determine the device handle for GPU2: 0000:99:00.0: Unknown Error\n")
    node = asked(machine)
    assert node.gpu_driver.lost == ("0000:99:00.0",)
    assert [g.index for g in node.gpus] == [0, 1, 3]


def test_a_gpu_whose_device_file_is_not_here_is_hidden_and_not_lost(machine: GpuMachine) -> None:
    machine.forget_gpu(3)
    (machine.root / "dev/nvidia3").unlink()
    node = asked(machine)
    assert node.gpu_driver.lost == () and len(node.gpus) == 3


def test_where_no_gpu_answers_those_that_could_are_lost(machine: GpuMachine) -> None:
    machine.says("fails", "6 No devices were found")
    for hidden in (1, 2, 3):
        (machine.root / f"dev/nvidia{hidden}").unlink()
    driver = asked(machine).gpu_driver
    assert (driver.error, driver.lost) == ("No devices were found", ("0000:19:00.0",))


def test_gpus_that_a_cgroup_hides_are_not_counted(machine: GpuMachine) -> None:
    machine.forget_gpu(3)
    machine.forget_gpu(2)
    path = f"{machine.root}/bin:{os.environ['PATH']}"
    request = request_of(root=str(machine.root))
    for env, count in (({}, 2), ({"CUDA_VISIBLE_DEVICES": "0"}, 1)):
        node = ask(request, parts=("system", "gpu", "software"), env={"PATH": path, **env}, scale=4.0)
        assert (len(node.gpus), node.gpu_count) == (2, count)


def test_what_stands_in_place_of_values_is_kept(machine: GpuMachine) -> None:
    machine.set_gpu(1, temperature__gpu="[GPU requires reset]", power__limit="[GPU requires reset]")
    gpu = asked(machine).gpus[1]
    assert (gpu.trouble, gpu.temperature_c, gpu.name) == ("GPU requires reset", None, "NVIDIA H100 80GB HBM3")


def test_the_job_sees_the_gpus_that_cuda_visible_devices_leaves(machine: GpuMachine) -> None:
    uuid = "GPU-0a0b0c0d-1111-2222-3333-000000000002"
    assert [g.is_visible for g in asked(machine, env={"CUDA_VISIBLE_DEVICES": "1"}).gpus] == [0, 1, 0, 0]
    assert [g.is_visible for g in asked(machine, job_env={"CUDA_VISIBLE_DEVICES": uuid}).gpus] == [0, 0, 1, 0]


def test_xids_are_read_where_the_kernel_log_may_be(machine: GpuMachine) -> None:
    line = "NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    switch = "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate"
    machine.kernel_says("usb 1-1: new device", line, line, switch)
    events = asked(machine).kernel_events
    assert [(e.kind, e.bus_id, e.code, e.count) for e in events] == [
        ("xid", "0000:1a:00.0", 79, 2),
        ("sxid", "0000:c3:00.0", 20009, 1),
    ]
    assert events[0].age_s == pytest.approx(60, abs=0.1) and "fallen off the bus" in events[0].text


def test_a_kernel_log_that_is_not_shown_is_unknown_with_the_reason(machine: GpuMachine) -> None:
    (machine.root / "dev/kmsg").unlink()
    assert "hidden in this container" in asked(machine).unknown["kernel_events"]


@pytest.mark.parametrize("restricted", ["0", "1"])
def test_a_kernel_log_that_needs_root_says_so_to_an_ordinary_user(restricted: str) -> None:
    python = shutil.which("python3", path="/usr/bin:/bin")
    if os.geteuid() == 0 and python is None:
        pytest.skip("root's own python may not be run by another user, and there is no other")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        machine = GpuMachine(Path(folder) / "m")
        machine.write("proc/sys/kernel/dmesg_restrict", f"{restricted}\n")
        Path(folder).chmod(0o755)
        (machine.root / "dev/kmsg").chmod(0)
        request = request_of(root=str(machine.root), python=python or sys.executable)
        done = subprocess.run(
            ["sh", "-c", facts_script("t0ken", request, parts=PARTS, scale=4.0)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin"},
            user=65534 if os.geteuid() == 0 else None,
        )
    node = read(done.stdout, done.stderr, PARTS, {})
    because = "kernel.dmesg_restrict is 1" if restricted == "1" else "/dev/kmsg may not be read"
    assert node.unknown["kernel_events"] == f"the kernel log needs root ({because})"
    assert len(node.pci) == 16 and node.gpu_driver.version == "590.48.01"


def test_a_driver_without_nvidia_smi_leaves_the_gpus_unknown(machine: GpuMachine) -> None:
    node = ask(request_of(root=str(machine.root)), parts=PARTS, env={"PATH": "/usr/bin:/bin"})
    if node.gpus:
        pytest.skip("a real nvidia-smi is here")
    assert node.unknown["gpus"] == gpus.NO_TOOL and node.gpu_driver.version == "590.48.01"


def test_amd_gpus_are_counted_in_their_drivers_topology(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    node = ask(request_of(root=str(tmp_path)), parts=("gpu", "software"), scale=4.0)
    assert "only counted" in node.unknown["gpus"] and "cannot be counted" in node.unknown["gpu_count"]
    for k, number in enumerate(["0", "9123", "17", "18", "19"]):
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{k}"
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(f"{number}\n")
    env = {"PATH": os.environ["PATH"], "HIP_VISIBLE_DEVICES": "0,1,2"}
    node = ask(request_of(root=str(tmp_path)), parts=("system", "software"), env=env, scale=4.0)
    assert node.gpu_count == 3


def test_a_machine_without_gpu_starts_no_process_for_them(tmp_path: Path) -> None:
    node = ask(request_of(root=str(tmp_path)), parts=("gpu", "pci"))
    assert (node.gpus, node.pci, dict(node.unknown)) == ((), (), {})


def test_a_gpu_without_a_driver_is_on_the_bus_all_the_same(machine: GpuMachine) -> None:
    shutil.rmtree(machine.root / "proc/driver")
    shutil.rmtree(machine.root / "dev")
    node = asked(machine)
    assert (node.gpus, node.gpu_driver.version) == ((), "")
    assert [d.bus_id for d in node.pci if d.is_nvidia_gpu] == list(GPUS)


@pytest.mark.parametrize("flags", ["fpu hypervisor sse", "fpu hypervisor"])
def test_a_virtual_machine_is_named(machine: GpuMachine, flags: str) -> None:
    machine.write("proc/cpuinfo", f"vendor_id\t: GenuineIntel\nflags\t\t: {flags}\n")
    machine.write("sys/class/dmi/id/sys_vendor", "QEMU\n")
    machine.write("sys/class/dmi/id/product_name", "Standard PC\n")
    assert asked(machine).virtual_machine == "QEMU Standard PC"


GOLDEN = Path(__file__).parent / "golden" / "nvidia"


@pytest.mark.parametrize("says", sorted(p.name for p in RECORDED.iterdir() if p.is_dir()))
def test_what_nvidia_smi_answers_becomes_the_golden_facts(tmp_path: Path, says: str) -> None:
    node = asked(GpuMachine(tmp_path / "m", says))
    told = {
        "gpus": [told_of(gpu) for gpu in node.gpus],
        "gpu_links": [f"{x.first}-{x.second} {x.peer} {x.path}" for x in node.gpu_links],
        "gpu_processes": [dataclasses.asdict(p) for p in node.gpu_processes],
        "refused": node.gpu_driver.refused,
    }
    text = json.dumps(told, indent=1) + "\n"
    path = GOLDEN / f"{says}.json"
    if os.environ.get("RINGUP_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def told_of(gpu: Gpu) -> dict[str, Any]:
    """What is told of a GPU, its NVLinks in short."""
    values = {k: v for k, v in dataclasses.asdict(gpu).items() if v not in (None, "", ()) and k != "nvlinks"}
    return {**values, "nvlinks": sorted({f"{link.gbyte_s:g} GB/s" for link in gpu.nvlinks})}


NONSENSE: tuple[Any, ...] = (
    None,
    7,
    "x",
    [],
    {"outputs": 5},
    {"outputs": {"gpus": {"lines": [1]}}},
    {"lost": [[]]},
)


@pytest.mark.parametrize("raw", NONSENSE)
@pytest.mark.parametrize("key", ["nvidia", "kernel"])
def test_nonsense_from_a_node_is_unknown_and_no_traceback(key: str, raw: Any) -> None:
    values, unknown = gpus.gpu_fields({"nvidia": None, key: raw}, "it did not tell")
    assert not set(values) & set(unknown)
    assert all(reason for reason in unknown.values())


def test_rows_that_are_none_are_skipped() -> None:
    lines = ["No devices were found", "-1, x", "999999999999999999999, x", "1, NVIDIA L4"]
    assert [g.name for g in parse.parse_gpus(lines, ["index", "name"])] == ["NVIDIA L4"]


def test_a_gpu_none_of_whose_links_is_up_has_an_inactive_one() -> None:
    said = "NVML: Unable to retrieve NvLink information as all links are inActive"
    lines = ["GPU 0: NVIDIA A100 (UUID: GPU-a)", said, "GPU 1: NVIDIA L40S (UUID: GPU-b)"]
    assert {k: v[0].gbyte_s for k, v in parse.parse_nvlinks(lines).items()} == {0: 0.0}


def test_a_process_is_told_with_its_gpu() -> None:
    found = parse.parse_processes(
        ["GPU-1, 77, 500, a, b", "GPU-9, 1, 1, x", "No running"], [Gpu(0, uuid="GPU-1")]
    )
    assert found == (GpuProcess(0, 77, "a, b", 500 << 20),)


def test_a_line_of_the_kernel_log_has_its_time() -> None:
    found = parse.parse_kernel_events(["4,9,100500000,-;NVRM: Xid (PCI:0000:01:00): 13, pid=1"], 200.5)
    assert found == (KernelEvent("xid", "0000:01:00.0", 13, "pid=1", 100.0, 1),)
