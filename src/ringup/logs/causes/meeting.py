"""How ranks meet: store, rendezvous, ports, names, counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import bars_at_a_limit, failure, of_the_web, went_on
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, Confidence, cause, seen
from ringup.logs.story import Story, is_loopback
from ringup.rules import Fix

_PORT = re.compile(r"(?:port[`'\":= ]*|\]:|(?<=\d):|\[::\]:)(\d{2,5})\b")
_OF_THE_STORE = re.compile(
    r"(?i)c10d|socket\.cpp|server socket|errno: 98|code: -98|RuntimeError|EADDRINUSE|port"
)
_UNREACHABLE = {"101": "network unreachable", "110": "timed out", "111": "refused", "113": "no route"}


def port_in(event: Event) -> str:
    """The port a line is about, "" when it does not say."""
    found = event["port"] or event["port2"]
    if not found:
        match = _PORT.search(event.text)
        found = match[1] if match and match[1] not in ("98", "48") else ""
    return found


@cause(problems.PORT_IN_USE, passing=True)
def port_in_use(story: Story) -> Iterator[Cause]:
    busy = [e for e in story.all("eaddrinuse") if not re.search(r"(?i)tensorboard|jupyter|grafana", e.text)]
    events = busy or [e for e in story.all("listen-failed") if not re.search(r"errno: (?!98)\d", e.text)]
    if not events:
        return
    port = next((p for p in map(port_in, events) if p), "")
    which = f"port {port}" if port else "the port"
    yield seen(
        events,
        f"{which} is already taken where the store or launcher wants to listen; "
        "time-outs on other ranks are its consequence",
        "high" if any(_OF_THE_STORE.search(e.text) for e in busy) else "medium",
        fix=Fix(
            f"see who holds {which}, end it if it is a leftover of ours (`ringup clean`), else "
            f"choose another port",
            commands=(f"ss -ltnp 'sport = :{port}'",) if port else (),
        ),
    )


def _store_failures(story: Story) -> list[Event]:
    given_up = story.all("client-timeout", "client-failed-any", "store-timeout", "tcpstore-retry")
    given_up += story.all("store-errno")
    refused = [e for e in story.all("client-refused") if e["errno"] in ("101", "110", "113")]
    if not given_up and not refused and not went_on(story):
        refused = [e for e in story.all("client-refused") if e["errno"] == "111"]
    return sorted([*given_up, *refused], key=lambda e: (e.file, e.line))


@cause("store-unreachable", passing=True)
def store_unreachable(story: Story) -> Iterator[Cause]:
    """
    A rank found nobody at the store's or coordinator's address.

    Why: the head is not started or late, a filter drops the port, or the address is not the head's.

    Fix: start the head first; open the port; use an address of the head that every node can route to.
    `nc -vz HEAD PORT` from the node that complains tells refused (nobody listens) from dropped (filter).

    In logs: `client socket has timed out after 60s while trying to connect to (HOST, PORT)`.
    """
    events = _store_failures(story)
    jax = story.all("jax-register") if story.has("deadline", "jax-register") else []
    if not events and not jax:
        yield from _no_store_made(story)
        return
    reasons = {_UNREACHABLE.get(e["errno"], "") for e in events} - {""}
    peer = next((f"{e['host']}:{e['port']}" for e in events if e["host"]), "")
    peer = peer or next((e["peer"] for e in events if e["peer"]), "")
    how = f" ({', '.join(sorted(reasons))})" if reasons else ""
    only_refused = bool(events) and all(e.tag == "client-refused" and e["errno"] == "111" for e in events)
    yield seen(
        [*events, *jax],
        f"nobody answered at {peer or 'the store or coordinator address'}{how}; the log of rank "
        f"0's host tells why",
        "low" if only_refused else "medium",
    )


def _no_store_made(story: Story) -> Iterator[Cause]:
    """The agents' own store could not be opened, and nothing says it was ever there."""
    broken = story.all("rdzv-connection")
    if broken and not story.has(
        "eaddrinuse", "name-unknown", "num-nodes-waiting", "keepalive-failed", "rdzv-closed"
    ):
        cut = story.all("reset-by-peer", "pipe-broken")
        text = "the agents' store could not be opened"
        if cut:
            text += ": something accepts connections at its address and ends them at once"
        yield seen([*broken, *cut], text, "medium" if cut else "low")


@cause("rendezvous-host-not-recognised", passing=True)
def rendezvous_host_not_recognised(story: Story) -> Iterator[Cause]:
    """
    With the c10d backend no agent takes the endpoint for its own address, so nobody opens the store.

    Why: torch compares the endpoint with the machine's own host name only; an IP of a second NIC, an alias,
    a service name or a name with a suffix is nobody's.

    Fix: the head's own host name as endpoint; or `--rdzv-conf is_host=true` on the head only with
    `--local-addr`; or the static backend with node ranks.

    In logs: `RendezvousConnectionError` and a 60 s client time-out on every node, the head too.
    """
    waits = story.all("client-timeout", "client-failed-any")
    c10d = [e for e in story.all("rdzv-backend") if e["backend"].lower() == "c10d"]
    broken = story.all("rdzv-connection", "rdzv-create")
    if not waits or not (c10d or broken):
        return
    if story.has("eaddrinuse", "name-unknown", "num-nodes-waiting", "keepalive-failed"):
        return
    if any(e["backend"].lower() == "static" for e in story.all("rdzv-backend")):
        return
    endpoint = next((e["endpoint"] for e in story.all("rdzv-endpoint")), "")
    routed = any(e["errno"] in ("110", "113", "101") for e in story.all("client-refused"))
    speakers = {(e.file, e.label or e.host) for e in waits}
    head_too = len(speakers) > 1 or any(e["rank"] == "0" for e in story.all("group-rank", "node-rank"))
    confidence = "high" if head_too and c10d else "medium" if c10d and not routed else "low"
    yield seen(
        [*waits, *c10d, *broken],
        f"every agent waits as a client of {endpoint or 'the endpoint'}, none took it for its own address",
        confidence,  # type: ignore[arg-type]
    )


@cause(problems.HOSTNAME_UNRESOLVABLE_FROM_PEER, passing=True)
def hostname_unresolvable(story: Story) -> Iterator[Cause]:
    names = [e for e in story.all("name-unknown") if not _is_shell_text(story, e) and not of_the_web(e)]
    if not names:
        return
    host = next((e["host"] for e in story.all("name-tried") if e["host"]), "")
    only_warned = all("[W" in e.text or "IPv6" in e.text for e in names)
    if only_warned and went_on(story):
        return
    confidence: Confidence = "high"
    unmet = {e["host"] for e in story.all("client-timeout", "client-failed-any") if e["host"]}
    if only_warned and len(names) <= 2 and host not in unmet:
        # torch asks for IPv6 first: a name without such an address is told of once or twice, and is fine.
        confidence = "low" if all("IPv6" in e.text for e in names) else "medium"
    who = names[0].host or names[0].label
    yield seen(
        names,
        f"the name {host or 'of a peer'} is not "
        f"known{f' on {who}' if who else ' on the node that complains'}",
        confidence,
    )


def _is_shell_text(story: Story, event: Event) -> bool:
    """Whether the "name" that cannot be resolved is a path or an assignment: a broken shell line."""
    tried = [e for e in story.at(event.file, event.line) if e.tag == "name-tried"]
    return any(re.search(r"[/=$\"']|\.(?:sh|bashrc)\b", e["host"]) for e in tried)


@cause(problems.HOSTNAME_RESOLVES_TO_LOOPBACK, passing=True)
def hostname_resolves_to_loopback(story: Story) -> Iterator[Cause]:
    dialled = [e for e in story.all("gloo-connect") if is_loopback(e["address"])]
    dialled += [
        e
        for e in story.all("gloo-remote")
        if is_loopback(e["address"])
        and any(abs(m.line - e.line) <= 2 and m.file == e.file for m in story.all("gloo-mesh"))
    ]
    said = story.all("gloo-loopback")
    listed = story.all("getent-loopback")
    elsewhere = story.all("gloo-name-not-here")
    if elsewhere:
        what = elsewhere[0]["name"] or elsewhere[0]["address"]
        yield seen(
            [*elsewhere, *said, *listed],
            f"the host's own name leads to {what}, and no interface here has such an address",
        )
    elif dialled:
        yield seen(
            [*dialled, *said, *listed], "a rank dials its own loopback: the host name maps to 127.x", "high"
        )
    elif said and failure(story) is not None and not went_on(story):
        yield seen(said, "Gloo fell back to the loopback address, which no other node can reach", "medium")
    elif listed and (story.spans_hosts or failure(story) is not None) and not went_on(story):
        yield seen(listed, f"the hosts file maps {listed[0]['names']} to {listed[0]['address']}", "medium")


@cause("peers-never-joined", passing=True)
def peers_never_joined(story: Story) -> Iterator[Cause]:
    """
    Fewer ranks or nodes came than the world size; the others waited until the limit.

    Why: some were never started, died before joining, or stand in another rendezvous.

    Fix: start the missing ones and read their own logs; a longer join time-out only when a node is
    slow to prepare.

    In logs: `worker_count` below `world_size`, `RendezvousTimeoutError`, `1/2 clients joined`.
    """
    short = [e for e in story.all("store-barrier") if 0 < e.number("count") < e.number("size")]
    clients = [e for e in story.all("clients-joined") if e.number("joined") < e.number("wanted")]
    # A wait at the store is one for a rank that never came only where no rank is seen at work.
    others = story.all("rdzv-timeout", *([] if bars_at_a_limit(story) else ["wait-poll"]))
    others += [e for e in story.all("jax-barrier") if not story.has("jax-late-barrier")]
    waits = [
        e
        for e in story.all("store-wait")
        if re.search(r"barrier|init|worker|//|torchelastic|rank_?\d", e["key"] or e.text)
        and "store-get" not in story.tags_at(e)
    ]
    if not (short or clients or others or waits):
        return
    text = "fewer processes came than were expected, the others waited until the limit"
    if short:
        best = max(short, key=lambda e: e.number("count"))
        text = (
            f"{best['count']} of {best['size']} ranks joined, "
            f"{best.number('size') - best.number('count')} never came"
        )
    elif clients:
        text = f"{clients[-1]['joined']} of {clients[-1]['wanted']} clients joined"
    first_group = any(e.number("key") <= 1 for e in short)
    yield seen([*short, *clients, *others, *waits], text, "high" if first_group or clients else "medium")


@cause(problems.RENDEZVOUS_IDS_DIFFER)
def rendezvous_ids_differ(story: Story) -> Iterator[Cause]:
    """Every node made its own run id, so each waits in a rendezvous of its own."""
    by_id: dict[str, Event] = {}
    for event in story.all("run-id"):
        by_id.setdefault(event["id"], event)
    if len(by_id) < 2:
        by_id = {}
        for event in story.all("run-id-shown"):
            value = event["id"] or event["id2"]
            if value and value.lower() != "none":
                by_id.setdefault(value, event)
        if len({(e.file, e.label, e.host) for e in by_id.values()}) < 2 or went_on(story):
            return
    if len(by_id) > 1:
        yield seen(
            by_id.values(), f"{len(by_id)} different run ids: each node waits in a rendezvous of its own"
        )


@cause("stale-rendezvous-state")
def stale_rendezvous_state(story: Story) -> Iterator[Cause]:
    """
    A rendezvous file or store still holds the ids or counters of an earlier start.

    Why: the counter never equals the world size again, or the address in it is nobody's.

    Fix: a fresh file per run, or a TCP store; restart against a new store.

    In logs: `File already exists:` before init, `worker_count` above `world_size`.
    """
    over = [e for e in story.all("store-barrier") if e.number("count") > e.number("size") > 0]
    there = story.all("file-exists")
    by_file = story.all("file-init")
    dead = story.all("gloo-connect", "nccl-connect", "client-refused")
    if there and (over or story.has("store-barrier") or failure(story) is not None):
        yield seen([*there, *over], f"{there[0]['path']} is left over from an earlier start", "high")
    elif by_file and dead and not went_on(story):
        yield seen([*by_file, *dead], "the file of init_method names an address nobody answers at", "medium")
    elif over:
        sure: Confidence = "low" if _launchers_per_task(story) else "medium"
        yield seen(
            over, "more workers checked in than the world has: the store's counter is an old one", sure
        )


_LAUNCHER = re.compile(r"torchrun|torch\.distributed|deepspeed|accelerate|colossalai|launch\.py|llamafactory")


def _launchers_per_task(story: Story) -> list[Event]:
    """Commands that start a launcher (or a script that spawns its ranks) in several tasks."""
    commands = story.all("command", "batch-option")
    launched = story.has("spawn-call", "omp-banner") or any(_LAUNCHER.search(e.text) for e in commands)
    found = []
    for event in commands:
        text = event["command"] or event["command2"] or event.text
        count = re.search(r"(?:--ntasks-per-node|--ntasks|-n|-np)[= ]?(\d+)", text)
        several = count is not None and len(count[1]) < 9 and int(count[1]) > 1
        if several and launched and re.search(r"srun|mpirun|mpiexec|SBATCH", text):
            found.append(event)
    return found


@cause(problems.LAUNCHER_STARTED_PER_TASK)
def launcher_started_per_task(story: Story) -> Iterator[Cause]:
    """The launcher itself was started once per Slurm or MPI task, each copy starting all local ranks."""
    commands = _launchers_per_task(story)
    over = [
        e
        for e in story.all("store-barrier")
        if e.number("size")
        and e.number("count") > e.number("size")
        and e.number("count") % e.number("size") == 0
    ]
    banners = Counter((e.file, e.label, e.host) for e in story.all("omp-banner"))
    twice = [
        e for e in story.all("omp-banner") if banners[e.file, e.label, e.host] > 1 and (e.label or e.host)
    ]
    if commands and (over or failure(story) is not None or story.has("eaddrinuse")):
        yield seen(
            [*commands, *over], "a launcher runs in every task, and each starts all local ranks", "high"
        )
    elif over and not story.has("file-exists", "file-init"):
        yield seen(over, "a multiple of the world size checked in: several launchers for one world", "low")
    elif twice and story.has("eaddrinuse"):
        yield seen(
            [*twice, *story.all("eaddrinuse")],
            "the launcher's banner stands several times for one node",
            "medium",
        )
