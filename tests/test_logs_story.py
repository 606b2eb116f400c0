"""Stories: hosts, ranks, networks and stages put together from several files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs import scan
from ringup.logs.read import Diagnosis, read_logs
from ringup.output.logs_report import network_json

RECORDED = Path(__file__).parent / "recorded" / "logs"


def told(tmp_path: Path, **files: str) -> Diagnosis:
    for name, text in files.items():
        (tmp_path / f"{name}.log").write_text(text, encoding="utf-8")
    return read_logs([str(tmp_path)])


def test_networks_of_a_sound_run_are_as_the_log_says() -> None:
    story = read_logs([str(RECORDED / "sound.log")]).story
    alpha = story.hosts["alpha"]
    assert alpha.kind == "IB"
    assert alpha.bootstrap == ("eno1", "192.0.2.4")
    assert alpha.interfaces == ["mlx5_0:1/RoCE", "mlx5_1:1/IB"]
    assert alpha.oob == "eno1"
    assert [alpha.device(net, i) for net, i in alpha.used] == ["mlx5_1:1/IB"]
    assert story.files[0].init_complete is True


def test_a_label_stands_for_the_host_and_rank_behind_it(tmp_path: Path) -> None:
    text = (
        "1: beta:42:42 [0] NCCL INFO comm 0x5 rank 7 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 "
        "commId 0x7 - Init START\n"
        "1: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    )
    cause = told(tmp_path, job=text).causes[0]
    assert (cause.rule, cause.nodes, cause.ranks) == ("ecc-uncorrectable", ("beta",), (7,))


def test_files_that_lack_init_complete_are_known(tmp_path: Path) -> None:
    line = (
        "n{0}:4{0}:4{0} [0] NCCL INFO comm 0x5 rank {0} nranks 2 cudaDev 0 busId 1000 commId 0x7 - Init {1}\n"
    )
    story = told(
        tmp_path, a=line.format(0, "START") + line.format(0, "COMPLETE"), b=line.format(1, "START")
    ).story
    assert [i.init_complete for i in story.files] == [True, False]
    assert [i.rank for i in story.files] == [0, 1]
    assert [i.host for i in story.files] == ["n0", "n1"]


def test_a_communicator_that_is_made_again_counts_anew(tmp_path: Path) -> None:
    line = "n0:4:4 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x{} - Init {}\n"
    text = line.format(7, "START") + line.format(7, "COMPLETE") + line.format(8, "START")
    assert told(tmp_path, a=text).story.files[0].init_complete is False


def test_a_list_of_interfaces_on_lines_of_its_own_is_read(tmp_path: Path) -> None:
    text = "INFO NET/Socket : Using\n[0]bond0:10.1.1.1<0>\n[1]br-1a:172.18.0.1<0>\n[2]br-2b:172.19.0.1<0>\n"
    assert told(tmp_path, a=text).causes[0].rule == "virtual-interface-chosen"


def test_releases_are_told_apart_by_their_phrases(tmp_path: Path) -> None:
    old = (
        "n0:4:4 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : x\n"
        "n0:4:4 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    )
    new = (
        "n1:4:4 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.2<0>\n"
        "n1:4:4 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 64 bytes instead of 8\n"
    )
    assert told(tmp_path, a=old, b=new).causes[0].rule == "nccl-versions-differ"


def test_two_networks_without_an_error_line_are_explained_and_the_shared_one_is_named() -> None:
    cause = read_logs([str(RECORDED / "two-networks")]).causes[0]
    assert cause.rule == "peer-unreachable-on-interface"
    assert cause.severity == "error"
    assert cause.fix is not None and cause.fix.env["NCCL_SOCKET_IFNAME"] == "data0"


def test_hosts_of_one_network_that_stop_early_are_not_called_unreachable(tmp_path: Path) -> None:
    line = (
        "n{0}:4:4 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{0}<0>\nn{0}:4:4 [0] NCCL INFO "
        "Using network Socket\n"
    )
    causes = told(tmp_path, a=line.format(1), b=line.format(2)).causes
    assert [c.severity for c in causes] == ["note"]


def test_a_wrapped_watchdog_record_keeps_its_rank(tmp_path: Path) -> None:
    text = (
        "[rank3]:[E ProcessGroupNCCL.cpp:689] [Rank 3] Watchdog caught collective operation timeout:\n"
        "WorkNCCL(SeqNum=9, OpType=ALLGATHER, NumelIn=8, NumelOut=64, Timeout(ms)=5400000)\n"
        "ran for 5400073 milliseconds before timing out.\n"
    )
    work = [e for e in told(tmp_path, a=text).story.all("work") if e["seq"]]
    assert [e.rank for e in work] == [3]


def test_what_repeats_is_collapsed(tmp_path: Path) -> None:
    line = (
        "n0:4:4 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n1<34848>\n"
    )
    story = told(tmp_path, a=line * 4_000).story
    assert len(story.events) < 100
    assert story.repeats["closed-by-peer"] == 4_000


@pytest.mark.parametrize(
    ("lines", "kind", "used"),
    [
        (
            ["Using network AWS Libfabric", "{c} via NET/AWS Libfabric/5/GDRDMA"],
            "OFI",
            ["NET/AWS Libfabric/5"],
        ),
        (["Using network IBext_v8", "{c} via NET/IBext_v8/0"], "IB", ["mlx5_0:1/IB"]),
        (
            [
                "Using network IB",
                "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2",
                "{c} via NET/IB/2/GDRDMA",
            ],
            "IB",
            ["mlx5_0+mlx5_1"],
        ),
        (["Using network IB", "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA"], "IB", []),
    ],
    ids=["libfabric", "plugin", "virtual", "collnet"],
)
def test_networks_of_plugins_and_devices_made_of_others_have_their_names(
    tmp_path: Path, lines: list[str], kind: str, used: list[str]
) -> None:
    listed = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eno1:10.0.0.1<0>"
    channel = "Channel 00/0 : 0[0] -> 8[0] [send]"
    said = [f"n0:4:4 [0] NCCL INFO {line.format(c=channel)}" for line in [listed, *lines]]
    host = told(tmp_path, a="\n".join(said)).story.hosts["n0"]
    shown = network_json(host)
    assert (shown["kind"], shown["used"]) == (kind, used)
    assert shown["interfaces"] == ["mlx5_0:1/IB", "mlx5_1:1/IB"]


SET_UP = (
    "NCCL version 2.27.7+cuda12.9",
    "cudaDriverVersion 12040",
    "Bootstrap: Using eth0:10.0.0.{node}<0>",
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.{node}<0>",
    "Using network IB",
    "comm 0x{rank} rank {rank} nranks 64 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init START",
    "Channel 00/0 : {rank}[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
    "comm 0x{rank} rank {rank} nranks 64 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init COMPLETE",
)


def test_what_many_ranks_set_up_does_not_hide_what_one_of_them_failed_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a merged log of 512 ranks nothing had been found."""
    monkeypatch.setattr(scan, "MAX_KEYS", 40)
    text = "".join(
        f"{rank}: n{rank // 8}:{40 + rank}:{40 + rank} [0] NCCL INFO {m.format(rank=rank, node=rank // 8)}\n"
        for m in SET_UP
        for rank in range(64)
    )
    text += "".join(f"{rank}: RuntimeError: Connection reset by peer\n" for rank in range(60))
    text += "63: torch.OutOfMemoryError: CUDA out of memory.\n"
    diagnosis = told(tmp_path, job=text)
    assert (diagnosis.causes[0].rule, diagnosis.causes[0].ranks) == ("gpu-out-of-memory", (63,))
    hosts = [network_json(h) for h in diagnosis.story.hosts.values()]
    assert len(hosts) == 8
    assert all((h["bootstrap"], h["used"]) == ("eth0", ["mlx5_0:1/IB"]) for h in hosts)


def test_hundreds_of_lines_for_one_way_between_ranks_do_not_hide_the_others(tmp_path: Path) -> None:
    near = "".join(f"Channel {n:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM\n" for n in range(200))
    far = "".join(f"Channel {n:02d}/0 : 0[0] -> 8[0] [send] via NET/IB/{n % 8}\n" for n in range(200))
    listed = (
        "NET/IB : Using "
        + " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(8))
        + " [RO]; OOB eth0:10.0.0.1<0>\n"
    )
    text = "".join(f"n0:4:4 [0] NCCL INFO {line}\n" for line in (listed + near + far).splitlines())
    story = told(tmp_path, a=text).story
    assert network_json(story.hosts["n0"])["used"] == [f"mlx5_{n}:1/IB" for n in range(8)]
    assert len(story.all("channel")) < 32


def test_what_is_kept_of_a_file_is_bounded_whoever_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "MAX_KEYS", 30)
    monkeypatch.setattr(scan, "MAX_EVENTS", 100)
    lines = [
        f"n{source}:{source}:9 [0] NCCL INFO NCCL_{'ABCDEFGH'[n]} set by environment to {n}\n"
        f"{source}: CUDA out of memory\n{source}: RuntimeError: wrong\n"
        for n in range(8)
        for source in range(500)
    ]
    assert len(told(tmp_path, a="".join(lines)).story.events) < 100 + 4 * 2 * 30 + 2 * 16 * 6
