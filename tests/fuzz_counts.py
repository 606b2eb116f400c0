"""
Fuzz the native counting core against the plain one, under AddressSanitizer and UBSan.

    python tests/fuzz_counts.py [--seconds 3600] [--seed N]

Compiles `core.c` with the sanitizers and with coverage of its branches (gcc), mutates the inputs of
`fuzz_counts.jsonl` and keeps there what reaches a branch that none before has reached.  Each input is fed in
blocks of some size; both cores must give one answer.  The input that fails is written to `fuzz-failed.bin`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CORE = ROOT / "src/ringup/logs/counts/core.c"
CORPUS = Path(__file__).with_suffix(".jsonl")
MODULE = "ringup.logs.counts.core"
LONGEST, MAP = 6000, 1 << 16
SIZES = (1, 2, 7, 63, 64, 500, 4096, 1 << 20)
COVER = f"""
#include <stdint.h>
unsigned char reached[{MAP}];
extern void PyInit_core(void);
void __sanitizer_cov_trace_pc(void) {{
    uintptr_t at = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&PyInit_core;
    reached[(at ^ (at >> 16)) & {MAP - 1}] = 1;
}}
"""
TOKENS = [
    *(b"\n", b"\r\n", b"\r", b"\0", b" ", b"\xff", b"x" * 300, b"0x" + b"f" * 40, b"[0] ", b"[nranks=2]"),
    *(b"NCCL INFO ", b"AllReduce: ", b"AllGather: ", b"Send: ", b"opCount ", b"opCount ffffffffffffffff "),
    *(b"sendbuff (nil)", b"count 0", b"count 18446744073709551616", b"datatype 7", b"op 0", b"root 0"),
    *(b"comm 0x0", b"stream (nil)", b"rank 1 ", b"rank 4294967296 ", b"nranks 0", b"commId 0x77"),
    *(b" - Init START", b" - Init COMPLETE", b"host:1:2 ", b"host:99999999999:2 ", b"[nranks=99999999999]"),
    *(b"\x1b[31m", b"\x1b[", b"\\", b"&lt;", b" WARN ", b"wa\x1b[0mrn", b"$ ", b"\xe2\x9d\xaf ", b"STEP 7"),
    *(b"via NET/Socket/0", b"Channel 00/0 : 0[0] -> 1[1] ", b"iteration 5/", b"Epoch: [1][20/"),
]
SEED = b"""\
nod1:1:1 [0] NCCL INFO comm 0x55d000000000 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x77 - Init START
nod1:1:1 [0] NCCL INFO comm 0x55d000000000 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x77 - Init COMPLETE
nod1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via NET/IB/0
nod1:1:1 [0] NCCL INFO AllReduce: opCount 8 sendbuff 0x7f01 recvbuff (nil) count 8 datatype 7 op 0 root 0 \
comm 0x55d000000000 [nranks=2] stream 0x55d000001000
iteration 5/ 100 | loss 1
3: node-3:33333:44444 [3] NCCL INFO Send: opCount 1 sendbuff 0x5 recvbuff 0x7 count 1 datatype 7 op 7 root 1 \
comm 0x5500 [nranks=4] stream 0x9
nod2:2:2 [1] x.cc:7 NCCL WARN something 0x7f failed
"""


def inputs() -> list[tuple[bytes, int]]:
    """(bytes, size of the blocks) of the corpus."""
    rows = map(json.loads, CORPUS.read_text().splitlines()) if CORPUS.exists() else ()
    return [(text.encode("latin-1"), size) for text, size in rows] or [(SEED, 64)]


def mutated(data: bytes, other: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(1 << chance.randrange(5)):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.choice((1, 2, 8, 40, 200)))
        start = chance.randrange(len(other) + 1)
        found[at:end] = chance.choice(
            (
                b"",
                bytes([chance.randrange(256)]),
                chance.choice(TOKENS),
                bytes(found[at:end]) * 2,
                other[start : start + chance.choice((10, 100, 400))],
                bytes(b ^ 1 << chance.randrange(8) for b in found[at:end]),
            )
        )
    return bytes(found[:LONGEST])


WORDS = (b"warn", b"nccl warn", b"step", b"fail", b"$ ", b"%|", b"via", b"nranks=2]", b"\xe2\x9d\xaf ")
ASKED = 2
"""Lines that are asked for behind each that holds a word."""


def is_wanted(line: bytes, words: Iterable[bytes] = WORDS) -> bool:
    """Whether a line must be handed on for what it holds."""
    if len(line) > 2048 or any(byte in line for byte in (b"\\", b"&", b"\0")):
        return True
    texts = (line, re.sub(rb"\x1b\[[\d;]*[mK]", b"", line))
    return any(word in text.lower() for word in words for text in texts)


def taker(lines: list[tuple[int, bytes]], asked: int = 0) -> Callable[[int, bytes, bytes | None], int]:
    """Puts lines into a list, and asks for so many more behind each that holds a word."""

    def take(number: int, line: bytes, found: bytes | None) -> int:
        lines.append((number, line))
        if found is not None:
            own = {n for n in memoryview(found).cast("H") if n < len(WORDS)}
            assert own == {n for n, word in enumerate(WORDS) if word in line.lower()}, (line, own)
        return number + asked * is_wanted(line)

    return take


def said(data: bytes, size: int, engine: str) -> Any:
    """
    Everything that a core says of an input: what it counted and which lines it handed on.

    Of lines that another has left out only those count that must be handed on.
    """
    from ringup.logs import counts
    from ringup.logs.grammar import WORDS as READ
    from tests.test_logs_counts import blocks, summary

    every: list[tuple[int, bytes]] = []
    few: list[tuple[int, bytes]] = []
    whole = summary(counts.scan(blocks(data, size), taker(every), engine=engine))
    part = counts.scan(blocks(data, size), taker(few, ASKED), engine=engine, words=WORDS)
    if engine == "python":
        until, lines = sys.maxsize, data.split(b"\n")
        handed, few = few, []
        for number, line in handed:
            if number <= until or is_wanted(lines[number - 1], (*WORDS, *READ)):
                few.append((number, line))
                until = number + ASKED * is_wanted(line)
    return whole, every, summary(part), few


def compiled(folder: Path) -> Path:
    (folder / "cover.c").write_text(COVER)
    flags = "-g -O1 -std=c11 -fPIC -shared -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    include = "-I" + sysconfig.get_paths()["include"]
    macros = ["-DPy_LIMITED_API=0x030A0000", include]
    module = folder / "core.abi3.so"
    kept = folder / "cover.o"
    subprocess.run(["gcc", "-c", "-fPIC", "-O1", str(folder / "cover.c"), "-o", str(kept)], check=True)
    words = ["gcc", *flags.split(), "-fsanitize-coverage=trace-pc", *macros, str(CORE), str(kept)]
    subprocess.run([*words, "-o", str(module)], check=True)
    return module


def under_sanitizers(module: Path) -> None:
    """Run this program again with the sanitizer's library, as an extension of a plain Python needs it."""
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    env = {**os.environ, "LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "FUZZED": str(module)}
    env |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONMALLOC": "malloc"}
    sys.exit(subprocess.run([sys.executable, *sys.argv], env=env).returncode)


def load(module: str) -> ctypes.Array[ctypes.c_ubyte]:
    """Put the compiled core in the package's place; its map of branches."""
    from importlib import machinery, util

    loader = machinery.ExtensionFileLoader(MODULE, module)
    spec = util.spec_from_file_location(MODULE, module, loader=loader)
    assert spec
    sys.modules[MODULE] = util.module_from_spec(spec)
    loader.exec_module(sys.modules[MODULE])
    return (ctypes.c_ubyte * MAP).in_dll(ctypes.CDLL(module), "reached")


def fuzz(module: str, seconds: float, seed: int) -> int:
    reached, chance, known = load(module), random.Random(seed), inputs()
    covered, runs, begun, told = 0, 0, time.monotonic(), 0.0
    todo, kept = known[:], []
    while todo or time.monotonic() - begun < seconds:
        if todo:
            data, size = todo.pop()
        else:
            data = mutated(chance.choice(known)[0], chance.choice(known)[0], chance)
            size = chance.choice(SIZES)
        Path("fuzz-failed.bin").write_bytes(data)
        native, plain = said(data, size, "native"), said(data, size, "python")
        if native != plain:
            print(f"the cores differ in blocks of {size}: fuzz-failed.bin", file=sys.stderr)
            return 1
        runs += 1
        now = int.from_bytes(bytes(reached), "little")
        if now | covered != covered:
            covered |= now
            kept.append((data, size))
            known = kept + known if (data, size) not in known else known
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{told - begun:.0f} s: {runs} inputs, {covered.bit_count()} places", flush=True)
    Path("fuzz-failed.bin").unlink()
    rows = sorted((json.dumps([data.decode("latin-1"), size]) for data, size in kept), key=len)
    CORPUS.write_text("".join(f"{row}\n" for row in rows))
    print(f"{runs} inputs, {covered.bit_count()} places, {len(kept)} kept; no difference, no error")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    args = parser.parse_args()
    if "FUZZED" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            under_sanitizers(compiled(Path(folder)))
    return fuzz(os.environ["FUZZED"], args.seconds, args.seed)


if __name__ == "__main__":
    sys.exit(main())
