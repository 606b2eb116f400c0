"""Ranks and sizes that do not fit: a node rank twice, a world of two sizes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import failure, nodes_wanted, went_on
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story


@cause(problems.NODE_RANK_DUPLICATE)
def node_rank_duplicate(story: Story) -> Iterator[Cause]:
    checked = story.all("rank-checked-in")
    if checked:
        rank = checked[0].number("rank")
        yield seen(checked, f"rank {rank} of {checked[0]['nranks']} came twice", "high", ranks=[rank])
        return
    owners: dict[str, dict[tuple[int, str], Event]] = defaultdict(dict)
    for event in story.all("node-rank"):
        owners[event["rank"]].setdefault((event.file, event.label or event.host or str(event.line)), event)
    nodes = nodes_wanted(story)
    for node, events in owners.items():
        commands = [e for e in events.values() if story.tags_at(e) & {"command"}]
        apart = len({k for k, e in events.items() if e.label or e.host}) > 1
        files = [e for e in events.values() if "machine_rank:" in e.text]
        if (len(commands) > 1 or apart or len(files) > 1) and nodes > 1 and failure(story) is not None:
            sure = len(owners) == 1 and story.has("clients-joined", "store-barrier", "rdzv-timeout")
            yield seen(
                events.values(),
                f"{len(events)} nodes were started with node rank {node}",
                "high" if sure else "medium",
                ranks=(),
            )
            return
    for event in story.all("command"):
        text = event["command"] or event["command2"]
        if (
            re.search(r"\bRANK=[1-9]", text)
            and re.search(r"FORCE_TORCHRUN|llamafactory", text)
            and "NODE_RANK" not in text
        ):
            # Its launcher says which node rank it read; older releases did read RANK.
            shown = [e for e in story.all("node-rank") if e["rank"] == "0" and "num nodes" in e.text]
            yield seen(
                [event, *shown],
                "RANK is set where this launcher reads NODE_RANK: every node takes itself for node 0",
                "high" if len(shown) > 1 else "low",
            )
            return
    members = Counter((e["rank"], e["nranks"]) for e in story.all("global-rank"))
    twice = [e for e in story.all("global-rank") if members[e["rank"], e["nranks"]] > 1]
    if twice:
        yield seen(twice, f"global rank {twice[0]['rank']} was started more than once", "low")


@cause(problems.WORLD_SIZE_DISAGREES)
def world_size_disagrees(story: Story) -> Iterator[Cause]:
    counts = story.all("root-count")
    counts += [e for e in story.all("root-info") if e["a"] != e["b"] and _sane_roots(e)]
    if counts:
        yield seen(
            counts, f"one rank says {counts[0]['a']} ranks, another {counts[0]['b']}", "high", ranks=()
        )
        return
    invalid = story.all("invalid-rank")
    if invalid:
        yield seen(
            invalid, f"rank {invalid[0]['rank']} does not fit into {invalid[0]['nranks']} ranks", "high"
        )
        return
    sizes: dict[int, Event] = {}
    for event in story.all("world-size"):
        value = event.number("size") or event.number("size2")
        if value:
            sizes.setdefault(value, event)
    apart = {(e.file, e.label, e.host) for e in sizes.values()}
    if len(sizes) > 1 and len(apart) > 1 and failure(story) is not None and not went_on(story):
        said = ", ".join(map(str, sorted(sizes)))
        yield seen(sizes.values(), f"nodes speak of different world sizes: {said}", "medium")
    over = [e for e in story.all("store-barrier") if e.number("count") > e.number("size") > 0]
    if over:
        yield seen(over, f"{over[0]['count']} workers joined a world of {over[0]['size']}", "low")


def _sane_roots(event: Event) -> bool:
    """Whether the counts in a root's complaint are counts: another release's message reads as nonsense."""
    return all(0 <= event.number(f) < 100_000 for f in ("roots_a", "roots_b", "a", "b"))
