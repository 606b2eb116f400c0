"""Rules about GPUs: what is mild, what is not checked, and what one fault must not say twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ringup.checks  # noqa: F401
from ringup.model import (
    Cluster,
    Gpu,
    GpuDriver,
    GpuLink,
    GpuProcess,
    Job,
    KernelEvent,
    NvLink,
    PciDevice,
    RdmaPort,
    Risen,
)
from ringup.nccl import pci
from ringup.rules import CHECKS, Finding, Skipped, run_checks
from tests import clusters as c
from tests.rule_cases import FIRES
from tests.rule_cases_gpu import ALONE, BUSES, DRIVER, OTHER, all_of, cluster, event, gpus, machine, tree
from tests.rule_cases_gpu import pci as pci_with

OWN = [
    n
    for n, r in CHECKS.items()
    if r.function.__module__.startswith(("ringup.checks.gpu", "ringup.checks.pcie"))
]


def told(cluster: Cluster) -> list[tuple[str, str]]:
    """Rule and severity of every finding."""
    return [(f.rule, str(f.severity)) for f in run_checks(cluster)[0]]


def found(name: str, cluster: Cluster) -> list[Finding]:
    return run_checks(cluster, {name: CHECKS[name]})[0]


def skipped(name: str, cluster: Cluster) -> list[Skipped]:
    return run_checks(cluster, {name: CHECKS[name]})[1]


def test_every_rule_of_the_catalogue_that_facts_can_tell_is_here() -> None:
    assert len(OWN) == 25


def test_a_gpu_that_the_job_does_not_see_is_not_judged() -> None:
    broken: dict[str, Any] = {
        "ecc_uncorrected": 4, "throttle_reasons": 0x40, "is_mig": True, "recovery_action": "Reset",
        "power_limit_w": 100.0, "remap_failed": True, "fabric_state": "In Progress", "is_visible": False,
    }  # fmt: skip
    assert told(cluster(**gpus(2, **broken), **event(79, bus=BUSES[2]))()) == []


@pytest.mark.parametrize("name", OWN)
def test_a_job_on_processors_alone_is_not_judged_by_its_gpus(name: str) -> None:
    on_processors = replace(FIRES[name](), job=Job(backend="gloo"))
    assert run_checks(on_processors, {name: CHECKS[name]}) == ([], [])


def test_a_lost_gpu_is_named_with_its_xid_and_not_counted_again() -> None:
    lost = cluster(gpu_driver=replace(DRIVER, lost=(BUSES[2],)), gpu_count=3, **event(79, bus=BUSES[2]))()
    assert told(lost) == [("gpu-missing", "error")]
    assert "Xid 79" in found("gpu-missing", lost)[0].found


def test_gpus_without_a_driver_matter_where_others_have_one() -> None:
    assert told(cluster(**ALONE)()) == [("gpu-missing", "error")]
    assert told(all_of(**ALONE)()) == [("gpu-missing", "note"), ("gpu-missing", "note")]


def test_gpus_that_a_scheduler_gave_to_nobody_are_not_said_to_lack_a_driver() -> None:
    nothing = replace(DRIVER, error="No devices were found")
    without = {"gpus": (), "gpu_links": (), "gpu_count": 0, "gpu_driver": nothing}
    (finding,) = found("gpu-missing", cluster(**without)())
    assert finding.severity == "error" and "none for the job's shell" in finding.found
    dead = {**without, "gpu_driver": replace(nothing, lost=BUSES[:1])}
    assert [f.where for f in found("gpu-missing", cluster(**dead)())] == [f"node1 GPU {BUSES[0]}"]


def test_gpus_given_to_virtual_machines_are_not_missing() -> None:
    given_away = tuple(replace(d, driver="vfio-pci") if d.is_nvidia_gpu else d for d in tree())
    assert told(all_of(**ALONE, pci=given_away)()) == []
    unseen = {**ALONE, "gpu_driver": replace(DRIVER, error="No devices were found")}
    assert told(all_of(**unseen, pci=given_away)()) == []
    first = next(d.bus_id for d in tree() if d.is_nvidia_gpu)
    some = tuple(replace(d, driver="vfio-pci") if d.bus_id == first else d for d in tree())
    count = sum(d.is_nvidia_gpu for d in tree()) - 1
    (finding, _) = found("gpu-missing", all_of(**ALONE, pci=some)())
    assert finding.found.startswith(f"{count} NVIDIA GPUs on the PCI bus")


def test_an_uncorrectable_error_after_which_the_driver_sees_no_need_only_warns() -> None:
    assert told(cluster(**gpus(1, ecc_uncorrected=1))()) == [("ecc-uncorrectable", "warning")]


def test_a_pending_remap_alone_only_warns() -> None:
    assert told(cluster(**gpus(1, remap_pending=True))()) == [("row-remap-pending", "warning")]


@pytest.mark.parametrize(
    ("code", "age_s", "action", "severity"),
    [
        (79, 60, "", "error"),
        (79, 90_000, "", "warning"),
        (79, 60, "None", "warning"),
        (94, 60, "", "warning"),
    ],
)
def test_how_bad_an_xid_is_depends_on_code_age_and_the_drivers_verdict(
    code: int, age_s: float, action: str, severity: str
) -> None:
    logged = cluster(**gpus(1, recovery_action=action), **event(code, age_s))()
    assert told(logged) == [("xid-in-kernel-log", severity)]


def test_boards_that_all_lack_peer_access_are_worth_a_note_only() -> None:
    none = {"gpu_links": (GpuLink(0, 1, "CNS", "PHB"),)}
    assert told(all_of(**none)()) == [("p2p-not-supported", "note")] * 2


def test_a_driver_too_old_for_a_question_is_not_checked() -> None:
    old = cluster(gpu_driver=replace(DRIVER, refused=("gpu_recovery_action",)))()
    assert [(s.node, "gpu_recovery_action" in s.reason) for s in skipped("recovery-action-needed", old)] == [
        ("node1", True)
    ]


def test_in_a_container_the_fabric_manager_cannot_be_seen() -> None:
    silent: dict[str, Any] = {
        "gpus": tuple(replace(g, fabric_state="") for g in gpus(0)["gpus"]),
        "pci": (*tree(), PciDevice("0000:c1:00.0", vendor=0x10DE, class_code=0x0680)),
    }
    hidden = cluster(**silent, gpu_driver=replace(DRIVER, fabric_manager="hidden"))()
    assert told(hidden) == [] and "container" in skipped("fabric-manager-not-running", hidden)[0].reason
    absent = cluster(**silent, gpu_driver=replace(DRIVER, fabric_manager="absent"))()
    assert told(absent) == [("fabric-manager-not-running", "error")]


def test_without_root_and_iommu_acs_is_not_checked() -> None:
    without = tuple(replace(d, iommu_group=None, iommu_type="") for d in tree())
    reasons = {s.reason for s in skipped("acs-enabled", all_of(pci=without)())}
    assert len(reasons) == 1 and "only root" in reasons.pop()


def test_the_register_that_root_reads_outranks_the_groups() -> None:
    quiet = tuple(replace(d, acs_control=0x1, iommu_group=int(d.bus_id[5:7], 16)) for d in tree())
    assert told(all_of(pci=quiet)()) == []
    redirecting = tuple(replace(d, acs_control=0x1D) if d.is_bridge else d for d in tree())
    loud = all_of(pci=redirecting)()
    assert told(loud) == [("acs-enabled", "note")] * 2
    fix = found("acs-enabled", loud)[0].fix
    assert fix is not None and fix.commands[0] == "ssh node0 sudo setpci -s 0000:18:00.0 ECAP_ACS+0x6.w=0000"


def test_a_slot_narrower_than_the_same_one_on_a_peer_is_told() -> None:
    slot = {"link_width": 8, "max_link_width": 8}
    half = tuple(replace(d, **slot) if d.bus_id in (BUSES[0], "0000:18:00.0") else d for d in tree())
    assert [(f.node, f.found, f.wanted) for f in found("pcie-link-degraded", cluster(pci=half)())] == [
        ("node1", "link x8", "x16")
    ]
    assert told(all_of(pci=half)()) == []


def test_a_link_whose_speed_nothing_tells_is_not_slow() -> None:
    assert told(all_of(pci=tuple(replace(d, link_gt_s=None) for d in tree()))()) == []


def test_memory_of_a_gpu_counts_more_than_what_its_processes_admit() -> None:
    holder = replace(OTHER, gpu=1, used_bytes=20 << 30)
    held = cluster(**gpus(1, used_bytes=70 << 30), gpu_processes=(holder,))()
    (finding,) = found("gpu-held-by-other-process", held)
    assert finding.found.startswith("70 GiB in use by")


def test_the_link_of_a_resting_amd_gpu_and_of_its_own_switch_is_not_slow() -> None:
    port = PciDevice("0000:00:01.1", (), "pci0000:00", 0x1022, 0x14DB, 0x0604)
    fast = {"max_link_gt_s": 16.0, "link_width": 16, "max_link_width": 16}
    port = replace(port, link_gt_s=2.5, **fast)
    own = replace(port, bus_id="0000:01:00.0", above=(port.bus_id,), vendor=0x1002, device=0x1478)
    below = replace(own, bus_id="0000:02:00.0", above=(*own.above, own.bus_id), device=0x1479)
    gpu = replace(below, bus_id="0000:03:00.0", above=(*below.above, below.bus_id), class_code=0x0300)
    assert found("pcie-link-degraded", all_of(pci=(port, own, below, gpu))()) == []
    narrow = tuple(replace(d, link_width=8) for d in (own, below, gpu))
    assert found("pcie-link-degraded", all_of(pci=(port, *narrow))())


@pytest.mark.parametrize(
    ("by", "severity"),
    [
        ({"fatal_errors": 1}, "error"),
        ({"correctable_errors": 40}, "warning"),
        ({"correctable_errors": 2}, ""),
    ],
)
def test_bus_errors_that_rise_during_the_check_are_told(by: dict[str, int], severity: str) -> None:
    rising = cluster(rises=(Risen(f"pci:{BUSES[1]}", 3.0, by),))()
    assert told(rising) == ([("pcie-errors", severity)] if severity else [])


def test_ports_of_a_virtual_machine_are_compared_with_peers_alone() -> None:
    facts = pci_with(BUSES[1], link_width=8)
    virtual = {"virtual_machine": "QEMU"}
    assert told(c.cluster(machine(0, **facts, **virtual), machine(1, **facts, **virtual))) == []


def test_an_older_branch_with_a_compatibility_library_only_warns() -> None:
    base = all_of(gpu_driver=replace(DRIVER, version="535.1.2"))
    assert {s for r, s in told(base()) if r == "driver-too-old-for-cuda"} == {"error"}
    helped = all_of(
        gpu_driver=replace(DRIVER, version="535.1.2"),
        environment={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"},
    )
    assert {s for r, s in told(helped()) if r == "driver-too-old-for-cuda"} == {"warning"}


# -- nonsense ----------------------------------------------------------------------------------

BUS = st.sampled_from(["", *BUSES, "0000:16:01.0", "0000:17:00.0", "0000:18:00.0", "x y"])
WORD = st.sampled_from(
    ["", "None", "Reset", "Completed", "CNS", "OK", "NV4", "DMA-FQ", "GPU is lost", "\x1b[2J"]
)
COUNT = st.one_of(st.none(), st.sampled_from([0, 1, 8, 60, 10**15]))
RATE = st.one_of(st.none(), st.sampled_from([0.0, 2.5, 32.0, 1e12]))


def some(made: Any, /, **fields: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.builds(made, **fields), max_size=4).map(tuple)


INDEX = st.integers(0, 3)
FACTS = st.fixed_dictionaries(
    {
        "gpus": some(
            Gpu,
            index=INDEX,
            name=WORD,
            bus_id=BUS,
            is_visible=st.booleans(),
            memory_bytes=st.sampled_from([0, 1 << 36]),
            used_bytes=COUNT,
            throttle_reasons=COUNT,
            ecc_uncorrected=COUNT,
            retired_pages=COUNT,
            remap_failed=st.booleans(),
            recovery_action=WORD,
            trouble=WORD,
            fabric_state=WORD,
            power_limit_w=RATE,
            compute_mode=WORD,
            is_mig=st.booleans(),
            nvlinks=some(NvLink, number=INDEX, gbyte_s=st.sampled_from([0.0, 26.5]), errors=COUNT),
        ),
        "gpu_links": some(GpuLink, first=INDEX, second=INDEX, peer=WORD, path=WORD),
        "gpu_processes": some(GpuProcess, gpu=INDEX, pid=st.just(7), name=WORD, used_bytes=COUNT),
        "gpu_driver": st.builds(
            GpuDriver,
            version=st.sampled_from(["", "x", "470.1", "590.48.01"]),
            lost=st.lists(BUS, max_size=2).map(tuple),
            error=WORD,
            silent_s=st.sampled_from([0.0, 9.0]),
            refused=st.just(("gpu_recovery_action",)),
        ),
        "kernel_events": some(
            KernelEvent,
            kind=st.sampled_from(["xid", "sxid"]),
            bus_id=BUS,
            code=st.sampled_from([13, 79, 94]),
            text=WORD,
            age_s=st.sampled_from([0.0, 1e9]),
        ),
        "pci": some(
            PciDevice,
            bus_id=BUS,
            above=st.lists(BUS, max_size=4).map(tuple),
            root=WORD,
            vendor=st.sampled_from([0x10DE, 0x15B3]),
            class_code=st.sampled_from([0x0302, 0x0604, 0x0680, 0x0207]),
            link_gt_s=RATE,
            max_link_gt_s=RATE,
            link_width=COUNT,
            max_link_width=COUNT,
            iommu_group=COUNT,
            iommu_type=WORD,
            acs_control=COUNT,
            numa_node=COUNT,
            fatal_errors=COUNT,
            correctable_errors=COUNT,
        ),
        "rdma_ports": some(
            RdmaPort,
            device=st.sampled_from(["a", "b"]),
            number=st.just(1),
            bus_id=BUS,
            state=st.sampled_from(["ACTIVE", "DOWN"]),
        ),
    }
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(FACTS, min_size=1, max_size=3))
def test_nonsense_about_gpus_is_judged_without_a_traceback(facts: list[dict[str, Any]]) -> None:
    nodes = [c.plain(k, **more) for k, more in enumerate(facts)]
    findings, _ = run_checks(c.cluster(*nodes), {name: CHECKS[name] for name in OWN})
    assert all(f.where and f.found and f.fix for f in findings)
    for node in nodes:
        assert list(pci.topology(node).devices()) is not None


def test_no_command_destroys_the_slices_of_other_users() -> None:
    (sliced,) = found("mig-or-compute-mode", cluster(**gpus(0, is_mig=True))())
    assert sliced.fix and not any("-mig" in line for line in sliced.fix.commands)
