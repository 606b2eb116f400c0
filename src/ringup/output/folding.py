"""
Equal things of many nodes as one: the only folding for all commands.

Texts are equal if they differ only in quantities (a number with a unit or a noun) and in the node's own name
and addresses.  Versions, addresses, names and identifiers are text.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ringup.hosts.folding import MOST_LISTED, node_set
from ringup.model import Cluster, Link
from ringup.units import grouped, plural, summarize_names

FAR, FAR_SHARE = 8.0, 0.1
"""A value is named if it is this many median absolute deviations, and this share of the median, away."""
MOST_FAR = 0.25
"""Largest share of values that are named; above this they are not exceptions."""
FEW = 3
"""Up to this many different values are all shown."""
OWN = "\0own"

_SIZES = {unit: 1024.0**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}
_TIMES = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,20}(?:\.\d{1,9})?)"
_OTHERS = "%|Gbit/s|Mbit/s|[KMG]B/s|GT/s|°C|W|MHz|GHz"
# A count has a noun after it and none in front: "GPU 3 lost" and "port 29500 refuses" are names.
_BEFORE_COUNT = r"^|[,;:(] |\b(?:of|only|with|by|has|have|within|after|most|least|than|about|over|holds?) "
_QUANTITY = re.compile(
    rf"(?<![\w.:/=-])(?P<long>\d{{1,9}} d \d\d? h|\d\d? h \d\d? min)\b"
    rf"|(?<![\w.:/=-])(?P<sized>{_NUMBER} ?(?:{'|'.join([*_SIZES, *_TIMES, _OTHERS])}))(?![\w/])"
    rf"|\bload (?P<load>{_NUMBER})"
    rf"|(?:{_BEFORE_COUNT})(?P<count>{_NUMBER})(?= (?:of [\d,]{{1,26}} )?[a-z]{{4}})"
)
_PARTS = re.compile(rf"({_NUMBER}) ?(\D{{0,20}})")
_WORD = re.compile(r"[\w.:%-]+")


class Quantity(NamedTuple):
    text: str
    value: float
    kind: str


class NodeText(NamedTuple):
    """One thing to fold: its node, its texts, and further values that must be equal."""

    who: str
    texts: tuple[str, ...]
    own: Collection[str] = ()
    """The node's own name and addresses."""
    key: Hashable = ()


class EqualTexts(NamedTuple):
    places: list[int]
    """The indices of its entries, in order."""
    texts: tuple[str, ...]
    is_example: bool
    """The texts contain the name or addresses of the first entry's node."""


def merge_equal(entries: Sequence[NodeText], *, numbers: bool = True) -> list[EqualTexts]:
    """
    Equal entries as one, in order of the first; with `numbers` quantities may differ.

    >>> [one] = merge_equal([NodeText(f"n{i}", (f"n{i}: {10 + i} MiB free",), (f"n{i}",)) for i in range(5)])
    >>> one.texts
    ('n0: 12 MiB (median of 10 MiB to 14 MiB) free',)
    """
    read = [[_read(text, numbers) for text in entry.texts] for entry in entries]
    keys = []
    for place, (entry, texts) in enumerate(zip(entries, read, strict=True)):
        likeness = tuple(_likeness(literals, quantities, entry.own) for literals, quantities in texts)
        keys.append(((entry.key, likeness), place))
    found = []
    for (_, likeness), places in grouped(keys).items():
        names = [entries[place].who for place in places]
        columns = zip(*(read[place] for place in places), strict=True)
        is_own = len(set(names)) > 1 and any(OWN in part for text in likeness for part in text)
        found.append(EqualTexts(places, tuple(_together(c, names) for c in columns), is_own))
    return found


Read = tuple[tuple[str, ...], tuple[Quantity, ...]]


@functools.lru_cache(maxsize=4096)
def _read(text: str, numbers: bool) -> Read:
    """A text cut at its quantities: the literals around them (one more), and the quantities."""
    literals, quantities, at = [], [], 0
    for match in _QUANTITY.finditer(text) if numbers else ():
        kind = match.lastgroup or ""
        literals.append(text[at : match.start(kind)])
        quantities.append(_quantity(match[kind]))
        at = match.end(kind)
    return (*literals, text[at:]), tuple(quantities)


def _quantity(text: str) -> Quantity:
    value, kind = 0.0, ""
    for number, unit in _PARTS.findall(text):
        scale = _SIZES.get(unit.strip()) or _TIMES.get(unit.strip()) or 1.0
        kind = "B" if unit.strip() in _SIZES else "s" if unit.strip() in _TIMES else unit.strip()
        value += float(number.replace(",", "")) * scale
    return Quantity(text, value, kind)


def _likeness(literals: Sequence[str], amounts: Sequence[Quantity], own: Collection[str]) -> tuple[str, ...]:
    """A key for equal texts: words with the node's own replaced, kinds of the quantities."""
    if any(word in literal for word in own for literal in literals):
        replaced = functools.partial(_WORD.sub, lambda word: OWN if word[0].strip(".:") in own else word[0])
        literals = [replaced(literal) for literal in literals]
    return (*literals, *(one.kind for one in amounts))


def _together(texts: Sequence[Read], names: Sequence[str]) -> str:
    """One text for equal ones: the first, with a summary in place of each quantity that differs."""
    literals = texts[0][0]
    columns = list(zip(*(quantities for _, quantities in texts), strict=True))
    shown, odd = [], []
    for column in columns:
        text, far = _summary(column, names)
        shown.append(text)
        odd += far
    whole = "".join(a + b for a, b in zip(literals, [*shown, ""], strict=True))
    return f"{whole}; far from the others: {summarize_names(odd)}" if odd else whole


def _summary(values: Sequence[Quantity], names: Sequence[str]) -> tuple[str, list[str]]:
    """Equal values unchanged, a few listed, more as median and range; and nodes far from the median."""
    different = list(dict.fromkeys(v.text for v in values))
    if len(different) == 1:
        return different[0], []
    median = statistics.median_low([v.value for v in values])
    spread = statistics.median([abs(v.value - median) for v in values])
    limit = max(FAR * spread, FAR_SHARE * median)
    far = [n for n, v in enumerate(values) if abs(v.value - median) > limit]
    if len(values) <= FEW or len(far) > MOST_FAR * len(values):
        far = []
    near = [v for n, v in enumerate(values) if n not in set(far)]
    odd = [f"{names[n]} {values[n].text}" for n in far]
    different = list(dict.fromkeys(v.text for v in near))
    if len(different) <= FEW and (len(values) <= FEW or len(different) == 1):
        return " / ".join(different), odd
    middle = next(v.text for v in near if v.value == median)
    least, most = (choose(near, key=lambda v: v.value).text for choose in (min, max))
    return f"{middle} (median of {least} to {most})", odd


Own = dict[str, frozenset[str]]
"""Node -> its name, host name and addresses, which mean the node itself on every node."""


def own_words(cluster: Cluster) -> Own:
    found = {}
    for node in cluster.nodes:
        addresses = (a.address for i in node.interfaces for a in i.addresses)
        found[node.name] = frozenset((node.name, node.hostname or node.name, *addresses))
    return found


def who(names: Sequence[str], is_example: bool = False) -> str:
    """The nodes of a fold; with `is_example`, the one whose name and addresses are in the texts."""
    text, shown = node_set(names), f"{names[0]} shown"
    if not is_example:
        return text
    return f"{text[:-1]}, {shown})" if text.endswith(" nodes)") else f"{text} ({shown})"


def by_node(
    rows: Iterable[tuple[str, str]], own: Own | None = None, *, numbers: bool = False
) -> Iterator[tuple[str, str]]:
    """Nodes and their text, equal ones as one: (node set, text)."""
    entries = [NodeText(node, (text,), (own or {}).get(node, ())) for node, text in rows]
    for one in merge_equal(entries, numbers=numbers):
        yield who([entries[place].who for place in one.places], one.is_example), one.texts[0]


def of_nodes(words: Mapping[str, str]) -> list[str]:
    """
    Text for each of a few nodes; of more, nodes with the same text share it.

    >>> of_nodes({f"n{k}": f"no answer of n{k}" for k in range(9)})
    ['n[0-8] (9 nodes, n0 shown): no answer of n0']
    """
    own = {name: frozenset([name]) for name in words}
    rows = words.items() if len(words) <= MOST_LISTED else by_node(words.items(), own)
    return [f"{names}: {text}" for names, text in rows]


def failed_paths(links: Sequence[Link], failed: Sequence[Link]) -> list[str]:
    """
    The paths that do not work: "node[0-8] -> node9 eth1 (9 paths)".

    If all paths tried to an interface fail, that is one entry; else nodes that fail alike are one entry, by
    source or by destination, whichever is shorter.
    """
    tried, found = grouped((link.dst_interface, link) for link in links), []
    for interface, bad in grouped((link.dst_interface, link) for link in failed).items():
        if len(bad) > FEW and len(bad) == len(tried[interface]):
            found.append(f"all {plural(len(bad), 'path')} to {interface}")
            continue
        ways = [_arrows(bad, is_by_source) for is_by_source in (True, False)]
        found += [f"{arrow} {interface}{count}" for arrow, count in min(ways, key=len)]
    return found


def _arrows(links: Sequence[Link], is_by_source: bool) -> list[tuple[str, str]]:
    """Source and destination sets, and the number of paths of each entry."""
    others = grouped((li.src, li.dst) if is_by_source else (li.dst, li.src) for li in links)
    alike = grouped((frozenset(far), near) for near, far in others.items())
    found = []
    for near in alike.values():
        far, count = others[near[0]], sum(len(others[name]) for name in near)
        sources, destinations = (near, far) if is_by_source else (far, near)
        shown = f" ({plural(count, 'path')})" if count > 1 else ""
        found.append((f"{node_set(sources)} -> {node_set(destinations)}", shown))
    return found
