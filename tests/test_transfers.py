"""Bytes that a process has received, sent and read, from the kernel."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from ringup.agent.proc import netlink, sockets
from ringup.agent.snapshot import machine, transfers
from ringup.agent.snapshot import main as snapshot_main


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        server = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server, socket.create_connection(server.getsockname()[:2]) as one, server.accept()[0] as other:
        yield one, other


def inode(sock: socket.socket) -> str:
    return str(os.fstat(sock.fileno()).st_ino)


def rank(*children: dict[str, int], namespace: str = "") -> dict[str, object]:
    return {"pid": os.getpid(), "children": [*children], "namespace": namespace}


def here() -> dict[str, int]:
    found = transfers.transfers([rank()], {})
    assert found is not None
    own: dict[str, int] = found[os.getpid()][1]
    return own


def arrive(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    pair[0].sendall(b"x" * size)
    assert len(pair[1].recv(size, socket.MSG_WAITALL)) == size


@pytest.mark.parametrize(("timer", "tries", "is_late"), [(1, 6, True), (1, 2, False), (2, 6, False)])
def test_the_end_that_does_not_acknowledge_is_named(
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    timer: int,
    tries: int,
    is_late: bool,
) -> None:
    def played(*words: object, **more: object) -> Iterator[bytes]:
        for data in netlink.dump(*words, **more):
            yield data[:2] + bytes([timer, tries]) + data[4:]

    monkeypatch.setattr(transfers, "dump", played)
    one = rank()
    assert transfers.transfers([one], {}) is not None
    address = pair[0].getpeername()[0]
    assert (address in one.get("unanswered", ())) == is_late  # type: ignore[operator]


def test_bytes_are_counted_at_both_ends(pair: tuple[socket.socket, socket.socket]) -> None:
    def grown() -> list[int]:
        before = here()
        arrive(pair, 50_000)
        return [here()[inode(end)] - before[inode(end)] for end in pair]

    arrive(pair, 300_000)
    assert 300_000 <= here()[inode(pair[1])] <= 300_001  # one may be for the handshake
    assert grown() == [50_000, 50_000]
    pair[0].close()
    assert here()[inode(pair[1])] >= 350_000  # CLOSE_WAIT
    known = inode(pair[1])
    pair[1].close()
    assert known not in here()


def test_a_rank_in_another_network_namespace_has_the_traffic_there() -> None:
    found = transfers.transfers([rank(namespace="net:[1]")], {})
    assert found and found[os.getpid()][0] == 0
    assert found[os.getpid()][1].keys() == transfers.traffic("self").keys() >= {"lo"}
    assert transfers.namespace(os.getpid()) == ""


def test_a_child_lists_only_its_own_connections(pair: tuple[socket.socket, socket.socket]) -> None:
    arrive(pair, 9_000)
    ready, wait = os.pipe(), os.pipe()
    if not (child := os.fork()):
        with socket.create_server(("127.0.0.1", 0)) as server:
            own = (socket.create_connection(server.getsockname()), server.accept()[0])
            arrive(own, 7_000)
            os.write(ready[1], b"x")
            os.read(wait[0], 1)
            os._exit(0)
    os.read(ready[0], 1)
    try:
        named = transfers.transfers([rank({"pid": child})], {})
        rest = transfers.transfers([rank()], {os.getpid(): [child]})
    finally:
        os.write(wait[1], b"x")
        os.waitpid(child, 0)
        for end in (*ready, *wait):
            os.close(end)
    assert named and [size // 10 for size in named[child][1].values()] == [700, 700]
    assert named[os.getpid()][1][inode(pair[1])] // 10 == 900
    assert rest and child not in rest
    assert {700, 900} <= {size // 10 for size in rest[os.getpid()][1].values()}


def test_a_table_of_connections_is_read_once_for_all_that_wait(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = []
    read = sockets.read

    def counted(path: str, most: int) -> bytes:
        tables.append(path)
        return read(path, most)

    monkeypatch.setattr(sockets, "read", counted)
    calls = [f"recvfrom of socket:[{inode(end)}]" for end in pair]
    calls += ["recvfrom of socket:[1]", "read of /data/in.fifo", ""]
    waiting = [{"pid": os.getpid(), "syscall": call} for call in calls]
    snapshot_main.name_connections(waiting)
    address, port = pair[0].getpeername()[:2]
    assert waiting[0]["syscall"] == f"recvfrom of the connection to {address} port {port}"
    assert waiting[1]["syscall"] == f"recvfrom of the connection to {address} port {pair[1].getpeername()[1]}"
    assert [one["syscall"] for one in waiting[2:]] == calls[2:]
    assert tables == [f"/proc/{os.getpid()}/net/{name}" for name in ("tcp", "tcp6")]


def test_a_line_that_the_bound_of_a_table_cuts_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"0: 0100007F:0016 0100007F:0017 01 0:0 0:0 0 0 0 1234 1\n"
    cut = b"head\n" + line + line.partition(b"34 1")[0]
    monkeypatch.setattr(sockets, "read", lambda path, most: cut)
    assert [inode for *_, inode in sockets.tcp()] == ["1234", "1234"]  # of both tables


def test_only_the_busiest_connections_are_listed() -> None:
    known = {f"socket:[{n}]": n for n in range(1000)}
    left_out, found = transfers.busiest(known, known)
    assert len(found) == transfers.MOST_SOCKETS and found["999"] == 999
    assert left_out == min(found.values()) - 1
    assert transfers.busiest(known, []) == [transfers.LEAST_BYTES, {}]


def test_a_kernel_that_refuses_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "SOCK_DIAG", 31)  # no such protocol
    assert transfers.transfers([rank()], {}) is None
    monkeypatch.undo()
    monkeypatch.setattr(netlink, "MOST_WHOLE_BYTES", 0)
    assert transfers.connections() is None


def test_an_old_kernel_reports_less() -> None:
    def answer(size: int) -> bytes:
        info = bytes(120) + (9).to_bytes(8, "little") + (5).to_bytes(8, "little")
        return bytes(72) + (4 + size).to_bytes(2, "little") + (2).to_bytes(2, "little") + info[:size]

    assert transfers.bytes_moved(answer(136)) == 14 and transfers.bytes_moved(answer(104)) == 0


def test_reads_of_other_threads_are_counted_apart_from_the_main_threads() -> None:
    def read() -> int:
        with open("/proc/self/status", "rb", buffering=0) as file:
            return len(file.read(65536))

    def monitor() -> None:
        sizes.append(read())
        is_read.set()
        over.wait()

    sizes: list[int] = []
    is_read, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=monitor)
    thread.start()
    try:
        is_read.wait()
        read()
        found = snapshot_main.thread_reads(os.getpid())
    finally:
        over.set()
        thread.join()
    assert [one[:3] for one in found if one[0] == thread.native_id] == [[thread.native_id, sizes[0], 1]]
    assert os.getpid() not in [one[0] for one in found]


def test_efas_ports_have_their_own_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [f"/sys/class/infiniband/{device}/ports/1/" for device in ("mlx5_0", "rdmap0s6", "rxe0")]
    known = {
        ports[0] + "counters/port_rcv_data": "10",
        ports[0] + "counters/port_xmit_data": "20",
        ports[1] + "hw_counters/rx_bytes": "300",
        ports[1] + "hw_counters/tx_bytes": "400",
    }
    monkeypatch.setattr(machine.glob, "glob", lambda _: ports)
    monkeypatch.setattr(machine, "traffic", lambda: {"lo": (1, 1), "eth0": (2, 3)})
    monkeypatch.setattr(machine, "text", lambda path, _: known.get(path, ""))
    assert machine.interfaces() == {"eth0": 5, "mlx5_0:1": 120, "rdmap0s6:1": 700, "rxe0:1": 0}
