"""The output of `$(commands)`, for commands that people use to find nodes, addresses and counts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from ringup.launchfiles import marks
from ringup.launchfiles.marks import Marks

_NODE_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_HOSTFILE", "LSB_DJOB_RANKFILE", "COBALT_NODEFILE")
_SAME = ("sort", "uniq", "tr", "cut", "awk", "sed", "xargs", "grep", "cat", "rev", "paste", "column", "nl")
"""Commands that keep a list of nodes or one node unchanged, in their usual forms."""
_ADDED = re.compile(r"(?:print|s.\$.|-I)[^=]{0,40}slots=[\"' ]{0,3}(\w{1,40})")
_FIRST = re.compile(r"(?:^|\s)(?:-n\s*)?-?1(?:\s|$)|1p|1q|NR==1|NR ?== ?1")


def substituted(stages: Sequence[Sequence[str]], site: str, known: Marks) -> str:
    """The output of a pipeline: a text or one mark; "" if unknown."""
    value = ""
    for at, words in enumerate(stages):
        if not words:
            return ""
        is_first = words[0] == "awk" and re.fullmatch(r" ?\{ ?print \$1 ?\} ?", words[-1])
        if is_first and at and stages[at - 1][:1] == ["echo"] and known.of(value):
            words = ["head", "-1"]  # echo has put the list in one line
        value = _stage(list(words), value, site, known)
        if not value:
            return ""
    if (mark := known.of(value)) and mark.name == marks.NODE_COUNT and _counts_slots(stages, known):
        return known.make(marks.SLOT_COUNT, site)
    return value


def _counts_slots(stages: Sequence[Sequence[str]], known: Marks) -> bool:
    """Whether a pipeline counts the lines of PBS's node file unchanged, a node once for each task."""
    words = [word for stage in stages for word in stage]
    plain = all(posixpath.basename(stage[0]) in ("cat", "wc", "awk") for stage in stages)
    return plain and any(mark.name == "PBS_NODEFILE" for word in words for mark in known.all_of(word))


def _stage(words: list[str], given: str, site: str, known: Marks) -> str:
    """One command's output for its input."""
    program, rest = posixpath.basename(words[0]), words[1:]
    while program in ("srun", "ssh", "env", "sudo", "timeout", "mpirun", "exec"):
        return _elsewhere(rest, site, known)
    for sign in ("<", "<<<"):
        if sign in rest:
            at = rest.index(sign)
            source = " ".join(rest[at + 1 : at + 2])  # nothing, if its variable is empty
            given, rest = source if sign == "<<<" else _file(source, site, known), rest[:at]
    files = [f for word in rest if (f := _file(word, site, known))]
    given = given or (files[0] if files else "")
    mark = known.of(given)
    name = mark.name if mark else ""
    if program == "scontrol" and rest[:1] == ["show"]:
        return known.make(marks.NODES, site) if rest[1:2] and rest[1].startswith("hostname") else ""
    if program in ("nodeset", "expand_hostlist", "hostlist", "python-hostlist"):
        return known.make(marks.NODES, site)
    if program == "hostname":
        is_address = any(re.match(r"-(?:[iI]$|-ip|-all-ip|-I)", word) for word in rest)
        return known.make(marks.OWN_ADDRESS if is_address else marks.OWN_NAME, site)
    if program in ("echo", "printf"):
        return " ".join(w for w in rest if not re.fullmatch(r"-[neE]+|%s(?:\\n)?", w))
    if program in ("which", "type") or words[:2] == ["command", "-v"]:
        return rest[-1] if rest else ""
    if program in ("getent", "host", "dig", "nslookup"):
        return _address_of(rest, site, known)
    if program == "head":
        return _first(given, " ".join(rest), site, known)
    if program == "tail" and name == marks.NODES:
        return known.make(marks.OTHER_NODE if _FIRST.search(" ".join(rest)) else marks.NODES, site)
    if program == "wc":
        counted = {marks.NODES: marks.NODE_COUNT, "@gpus": marks.GPU_COUNT}.get(name, "")
        if rest == ["-w"] and given and not known.all_of(given):
            return str(len(given.split()))
        return known.make(counted, site) if counted else ""
    if program == "nvidia-smi" or program == "rocm-smi":
        return known.make("@gpus", site)
    if program == "seq" and rest and all(w.isdecimal() for w in rest) and int(rest[-1]) < 5000:
        return " ".join(map(str, range(int(rest[0]) if len(rest) > 1 else 1, int(rest[-1]) + 1)))
    if program in _SAME and name:
        return _filtered(program, rest, given, name, site, known)
    if program in ("cut", "awk", "tr") and given:
        return given if program == "tr" else ""
    return ""


def with_slots(program: str, rest: Sequence[str]) -> str:
    """` slots=8`, if awk or sed adds this to each line of a host file; "" for anything else."""
    text = " ".join(rest)
    found = _ADDED.search(text) if program in ("awk", "sed", "xargs") else None
    if found is None or found[1].isdecimal():
        return f" slots={found[1]}" if found else ""
    given = (word.removeprefix("-v").partition("=") for word in rest)  # awk -v n=8
    return next((f" slots={n}" for name, _, n in given if name == found[1] and n.isdecimal()), "")


def _filtered(program: str, rest: list[str], given: str, name: str, site: str, known: Marks) -> str:
    text = " ".join(rest)
    if name == marks.NODES and (added := with_slots(program, rest)):
        return given + added
    if program in ("sed", "awk") and name == marks.NODES:
        if re.search(r"\b1p|1q|NR ?== ?1\b", text):
            return known.make(marks.FIRST_NODE, site)
        if re.search(r"[2-9$]\d{0,4}p|NR ?== ?[2-9]", text):
            return known.make(marks.OTHER_NODE, site)
    if program == "sed" and name == marks.NODES and ".*/" in text:
        return ""  # a part of the list
    if program == "cut" and name == marks.NODES and re.search(r"-f\s*1\b", text):
        return known.make(marks.FIRST_NODE, site)
    if program == "grep" and name == marks.NODES and ("-n" in rest or "-c" in rest):
        return known.make("grep", site)
    return given


def _first(given: str, how: str, site: str, known: Marks) -> str:
    mark = known.of(given)
    if mark is None:
        return given.split("\n")[0]
    if mark.name == marks.NODES and _FIRST.search(how):
        return known.make(marks.FIRST_NODE, site)
    return given


def _file(word: str, site: str, known: Marks) -> str:
    """The contents of a file of node names, if a word names one."""
    if (mark := known.of(word)) and mark.name in (*_NODE_FILES, marks.NODES):
        return known.make(marks.NODES, site)
    return ""


def _address_of(words: list[str], site: str, known: Marks) -> str:
    for word in words:
        if (mark := known.of(word)) and mark.name == marks.FIRST_NODE:
            return known.make(marks.FIRST_ADDRESS, site)
        if mark and mark.name == marks.OWN_NAME:
            return known.make(marks.OWN_ADDRESS, site)
    return ""


def _elsewhere(words: list[str], site: str, known: Marks) -> str:
    """`srun -w HEAD hostname -I`, `ssh HEAD hostname -i`."""
    held = [mark for word in words for mark in known.all_of(word)]
    text = " ".join(words)
    if "hostname" not in text and "ip " not in text and "getent" not in text:
        return ""
    if re.search(r"\b(?:ba)?sh -|PROCID|NODEID", text):
        return ""  # one of its tasks answers
    is_address = re.search(r"hostname +-\w{0,9}[iI]|--ip-address|\bip (?:-\w{1,9} )?addr|getent", text)
    if any(mark.name == marks.FIRST_NODE for mark in held):
        return known.make(marks.FIRST_ADDRESS if is_address else marks.FIRST_NODE, site)
    return known.make(marks.OTHER_NODE, site) if held else ""
