"""Rendezvous: store, ports, names, counts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from ringup.addresses import is_loopback
from ringup.logs.causes.symptoms import (
    SHELL_TEXT,
    bars_at_a_limit,
    first_value,
    is_absurd,
    of_an_earlier_attempt,
    of_the_web,
    waits_of_the_program,
)
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event, message_of, ranks_of
from ringup.logs.rule import A_TRACEBACK, Cause, Confidence, Found, cause, report
from ringup.rules import Fix
from ringup.units import first_of_each, grouped

_PORT = re.compile(r"(?:port[`'\":= \[]*|\]:|(?<=\d):|\[::\]:)(\d{2,5})\b")
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
_OF_THE_STORE = r"(?i)c10d|socket\.cpp|server socket|errno: 98|code: -98|RuntimeError|EADDRINUSE|port"
_UNREACHABLE = {"101": "network unreachable", "110": "timed out", "111": "refused", "113": "no route"}


def port_in(event: Event) -> str:
    """The port in a line, "" if it has none."""
    match = _PORT.search(_CLOCK.sub(" ", message_of(event.text)))
    return event["port"] or event["port2"] or (match[1] if match and match[1] not in ("98", "48") else "")


_ANY_PORT = (
    r"NCCL WARN .{0,60}[Cc]all to (?:bind|connect) failed ?: (?:Address already in use|Cannot assign)"
    r"|socket\.cc:\d+.{0,40}bind failed ?: Address already"
)
"""NCCL binds its sockets to port 0, for which any free port is enough."""


_ELSEWHERE = r"with a new port|a random (?:available )?port|port \S{1,10} instead|a couple possibilities"
"""Of a program that takes another port, or does not know the reason."""


@cause("port-in-use", overcome=None)
def port_in_use(log: LogEvidence) -> Found:
    busy = log.all("eaddrinuse", lacks=f"(?i)tensorboard|jupyter|grafana|{_ANY_PORT}|{_ELSEWHERE}")
    events = busy or log.all("listen-failed", lacks=r"(?:errno: |code: -)(?!98)\d")
    port = next(filter(None, map(port_in, events)), "")
    which, commands = (f"port {port}", (f"ss -ltnp 'sport = :{port}'",)) if port else ("the port", ())
    text = f"{which} is already taken where the store or launcher wants to listen; "
    text += "timeouts on other ranks are its consequence"
    leftover = f"see who holds {which}, end it if it is a leftover of an earlier run (`ringup clean`)"
    fix = Fix(f"{leftover}, else choose another port", commands=commands)
    sure = any(re.search(_OF_THE_STORE, e.text) for e in busy)
    holders = log.all("listening", port=port or "none")
    if holders and holders[0]["pid"]:
        text += f"; {holders[0]['program']} (pid {holders[0]['pid']}) listens there"
    return report([*events, *holders], text, "high" if sure else "medium", fix=fix)


@cause("ephemeral-ports-exhausted", overcome=None)
def ephemeral_ports_exhausted(log: LogEvidence) -> Found:
    """
    A process requested any free port, but the host has none left.

    Why: NCCL's own sockets and outgoing connections take a port of net.ipv4.ip_local_port_range. An
    all-to-all of thousands of ranks without PXN uses it up, as do connections in TIME_WAIT.
    Fix: `sysctl -w net.ipv4.ip_local_port_range="10000 65000"` on every node, NCCL_PXN_DISABLE unset;
    `ss -s` shows the number of sockets.
    In logs: `misc/socket.cc:409 NCCL WARN Call to bind failed: Address already in use`.
    """
    full = log.all("eaddrinuse", has=_ANY_PORT)
    few = log.all("env-set", name="NCCL_PXN_DISABLE", value="1")
    return report([*full, *few[:1]], "no free port is left for NCCL's sockets on a host", "medium")


@cause("store-unreachable", overcome=None)
def store_unreachable(log: LogEvidence) -> Found:
    """
    A rank got no answer at the store's or coordinator's address.

    Why: the head is not started or late, a filter drops the port, or the address is not the head's.
    Fix: start the head first; open the port; use an address of the head that every node can route to.
    `nc -vz HEAD PORT` from the node that complains shows refused (nobody listens) or dropped (filter).
    In logs: `client socket has timed out after 60s while trying to connect to (HOST, PORT)`.
    """
    failed = ["client-timeout", "client-failed-any", "tcpstore-retry", "store-errno"]
    told = bars_at_a_limit(log) or log.has("clients-joined")  # the reason of the wait at the store
    failed += [] if told else ["store-timeout"]
    refused = log.all("client-refused", errno="101|110|113")
    if not refused and not log.has(*failed) and not log.outcome.went_on:
        refused = log.all("client-refused", errno="111")
    events = sorted([*log.all(*failed), *refused], key=lambda e: (log.outcome.overcome(e), e.place))
    # For a rank that watches its peers, or has worked, the coordinator is gone: with the job, or rank 0.
    jax = log.all("jax-register", "ray-head", lacks="WatchTasks|^:UNAVAILABLE:")
    jax = [e for e in jax if not log.outcome.worked_before(e)]
    if not events and not jax:
        return _no_store_made(log)
    reasons = sorted({_UNREACHABLE.get(e["errno"], "") for e in events} - {""})
    how = f" ({', '.join(reasons)})" if reasons else ""
    hosts = [f"{e['host']}:{e['port']}".rstrip(":") for e in events if e["host"]]
    peer = next(iter(hosts), first_value(events, "peer")) or "the store or coordinator address"
    if any(e.tag == "tcpstore-retry" for e in events):
        how = ": it, or a proxy before it, accepts connections and ends them at once"
    if any(e["foreign"] for e in events):
        how = ": a proxy or another service answers there, no store"
    unanswered = [e for e in log.all("syn-sent") if f"{e['address']}:{e['port']}" == peer]
    if unanswered:
        how += " (SYN-SENT: a filter drops it, or no host has that address)"
    shown = [e["address"] for e in log.all("own-address", "offered-interface") if e["address"]]
    shown = [address for address in shown if not is_loopback(address)]
    head = peer.rpartition(":")[0]
    if shown and re.fullmatch(r"[\d.]+", head) and head not in shown:
        how += f"; {head} is not among the addresses shown here ({', '.join(shown[:4])})"
    only_refused = events and all(e.tag == "client-refused" and e["errno"] == "111" for e in events)
    text = f"nobody answered at {peer}{how}; read the log of rank 0's host"
    if not events and 0 in ranks_of(e for e in jax if "RegisterTask" in e.text):
        # It answers when all have called it (jax 0.11, xla/pjrt/distributed/coordination).
        text = "the coordinator registered no process in time, not even its own: others cannot reach"
        text += " its address, or fewer processes came than num_processes says"
    elif not events and all("xla.coordination.CoordinationService/RegisterTask" in e.text for e in jax):
        # The newer service answers when all have called it.
        text = f"{text}, or fewer processes came than num_processes says"
        only_refused = True
    cut = log.all("recv-vector") if log.has("tcpstore-retry") else []
    above = {(e.file, e.line - by) for e in jax for by in range(1, 4)}
    cut += [e for e in log.all("jax-died", has="Terminating process because") if e.place in above]
    return report([*cut[:1], *events, *jax, *unanswered], text, "low" if only_refused else "medium")


def _no_store_made(log: LogEvidence) -> Cause | None:
    """The agents' own store could not be opened, and nothing shows that it ever existed."""
    if log.has("eaddrinuse", "name-unknown", "num-nodes-waiting", "keepalive-failed", "rdzv-closed"):
        return None
    if not (broken := log.all("rdzv-connection")):
        return None
    text = "the agents' store could not be opened"
    if cut := log.all("reset-by-peer", "pipe-broken"):
        text += ": something accepts connections at its address and ends them at once"
    return report([*broken, *cut], text, "medium" if cut else "low")


@cause("rendezvous-host-not-recognised", overcome=None)
def rendezvous_host_not_recognised(log: LogEvidence) -> Found:
    """
    With the c10d backend no agent takes the endpoint for its own address, so nobody opens the store.

    Why: torch compares the endpoint with the machine's own host name and with the addresses of that name; an
    address of another NIC, or a name that leads to one, belongs to no agent.
    Fix: use the head's own host name as endpoint; or `--rdzv-conf is_host=true` on the head only with
    `--local-addr`; or the static backend with node ranks.
    In logs: `RendezvousConnectionError` and a 60 s client timeout on every node, the head too.
    """
    waits = log.all("client-timeout", "client-failed-any")
    c10d = log.all("rdzv-backend", backend="(?i)c10d")
    broken = log.all("rdzv-connection", "rdzv-create")
    if not waits or not (c10d or broken) or log.all("rdzv-backend", backend="(?i)static"):
        return None
    if log.has("eaddrinuse", "name-unknown", "num-nodes-waiting", "keepalive-failed"):
        return None
    endpoint = first_value(log.all("rdzv-endpoint"), "endpoint") or "the endpoint"
    routed = log.all("client-refused", errno="110|113|101")
    speakers = {(e.file, e.label or e.host) for e in waits}
    head_too = len(speakers) > 1 or log.all("group-rank", "node-rank", rank="0")
    text = f"every agent waits as a client of {endpoint}, none took it for its own address"
    in_c10d = log.all("rdzv-connection", has="c10d_rendezvous_backend")
    sure = (c10d or (in_c10d and len(speakers) > 1)) and not routed
    confidence: Confidence = "high" if head_too and c10d else "medium" if sure else "low"
    return report([*waits, *c10d, *broken], text, confidence)


_OF_IPV6 = re.compile(r"IPv6 network addresses? .{0,200}\bgai error: -(?P<code>\d+)", re.IGNORECASE)
_NO_SUCH_FAMILY = ("5", "9")
"""EAI_NODATA and EAI_ADDRFAMILY of glibc: the name is known, and has no such address."""


@cause("hostname-unresolvable-from-peer", overcome=None)
def hostname_unresolvable(log: LogEvidence) -> Found:
    hosts = {e.place: e["host"] for e in log.all("name-tried")}
    unmet = {e["host"] for e in log.all("client-timeout", "client-failed-any") if e["host"]}
    raised = log.all("exception") if log.has("name-unknown") else []

    def proves(event: Event) -> bool:
        host = hosts.get(event.place, "")
        # torch tries IPv6 first, then IPv4: a name without IPv6 is reported, but is fine.
        ipv6 = _OF_IPV6.search(event.text)
        fine = ipv6 and (ipv6["code"] in _NO_SUCH_FAMILY or host not in unmet)
        below = (e for e in raised if e.file == event.file and 0 <= e.line - event.line < A_TRACEBACK)
        return not (fine or SHELL_TEXT.search(host) or any(map(of_the_web, (event, *below))))

    refused = {(e.file, e.line - by) for e in log.all("bad-setting") for by in range(1, 4)}
    # A setting's value that is not an address is looked up as a name before it is refused.
    # Gloo's is its own name, which the next cause is about.
    unknown = log.all("name-unknown", lacks=r"to a .local. address|\bsudo: ")
    names = [e for e in unknown if proves(e) and e.place not in refused]
    only_warned = all("[W" in e.text for e in names)
    if not names or (only_warned and log.outcome.went_on):
        return None
    host = next(filter(None, (hosts.get(e.place) for e in names)), "")
    confidence: Confidence = "medium" if only_warned and host not in unmet else "high"
    who = names[0].host or names[0].label or "the node that complains"
    return report(names, f"the name {host or 'of a peer'} is not known on {who}", confidence)


_AGAIN_S = 10.0


@cause("hostname-unresolvable-from-peer", overcome=None, fallback=True)
def name_looked_up_again_and_again(log: LogEvidence) -> Found:
    """A name that is looked up again and again, to the log's end, without other messages."""
    asked = [e for e in log.all("name-tried", has="IPv6 network") if e.time_s is not None]
    times = [e.time_s or 0 for e in asked]  # every rank does one lookup, all in the same second or two
    if log.outcome.went_on or len({e["host"] for e in asked}) != 1 or max(times) - min(times) < _AGAIN_S:
        return None
    return report(asked, f"the name {asked[0]['host']} is looked up again and again", "medium")


@cause("hostname-resolves-to-loopback", overcome=None)
def hostname_resolves_to_loopback(log: LogEvidence) -> Found:
    near_mesh = {(e.file, e.line + by) for e in log.all("gloo-mesh") for by in range(-2, 3)}
    dialled = [e for e in log.all("gloo-connect") if is_loopback(e["address"])]
    remote = [e for e in log.all("gloo-remote") if is_loopback(e["address"])]
    dialled += [e for e in remote if e.place in near_mesh]
    dialled = [e for e in dialled if e.place not in {a.place for a in of_an_earlier_attempt(log)}]
    fell_back, listed = log.all("gloo-loopback"), log.all("getent-loopback")
    if elsewhere := log.all("gloo-name-not-here"):
        what = elsewhere[0]["name"] or elsewhere[0]["address"]
        text = f"the host's own name resolves to {what}, and no interface here has such an address"
        return report([*elsewhere, *fell_back, *listed], text, "medium")  # no loopback, or Gloo could bind it
    if dialled:
        text = (
            "a rank connects to its own loopback: its host name maps to 127.x, or GLOO_SOCKET_IFNAME names lo"
        )
        return report([*dialled, *fell_back, *listed], text)
    if log.outcome.went_on:
        return None
    if fell_back:
        text = "Gloo fell back to the loopback address, which no other node can reach"
        return report(fell_back, text, "medium", severity=None if log.outcome.failed else "warning")
    if listed and (log.spans_hosts or log.outcome.failed):
        text = f"the hosts file maps {listed[0]['names']} to {listed[0]['address']}"
        return report(listed, text, "medium")
    return None


@cause("peers-never-joined", overcome=None)
def peers_never_joined(log: LogEvidence) -> Found:
    """
    Fewer ranks or nodes came than the world size; the others waited until the limit.

    Why: some were never started, died before joining, or joined another rendezvous.
    Fix: start the missing ones and read their own logs; a longer join timeout only when a node is
    slow to prepare.
    In logs: `worker_count` below `world_size`, `RendezvousTimeoutError`, `1/2 clients joined`.
    """
    short = [e for e in log.all("store-barrier") if 0 < e.number("count") < e.number("size")]
    clients = [e for e in log.all("clients-joined") if e.number("joined") < e.number("wanted")]
    # A wait at the store is for a missing rank only if no rank is seen at work.
    waits, programs = log.all("store-wait"), waits_of_the_program(log)
    meeting = [e for e in waits if e not in programs]
    at_work = bars_at_a_limit(log) or (waits and not meeting)
    others = log.all("rdzv-timeout", *([] if at_work or log.has("store-get") else ["wait-poll"]))
    # The barrier of a shutdown is one of tasks that had come.
    late = log.has("jax-late-barrier") or log.all("jax-died", has="heartbeat|crashed|unhealthy")
    others += [] if late else log.all("jax-barrier", lacks="Shutdown")
    others += [e for e in meeting if "store-get" not in log.tags_at(e)]
    text, size = "fewer processes came than were expected, the others waited until the limit", 0
    if short:
        best = max(short, key=lambda e: e.number("count"))
        came, size = best.number("count"), best.number("size")
        text = f"{came} of {size} ranks joined, {size - came} never came"
    elif clients:
        size = clients[-1].number("wanted")
        text = f"{clients[-1]['joined']} of {size} clients joined"
    # If a rank reports why it could not connect, the head's message about the missing rank is a consequence.
    unmet = ("client-timeout", "client-failed-any", "name-unknown", "store-errno")
    told = any(
        (e.file, e.label, e.host) != (c.file, c.label, c.host) for c in clients for e in log.all(*unmet)
    )
    sure = (clients and not told) or any(e.number("key") <= 1 for e in short)
    late = log.all("jax-task")
    ranks = {int(n) for e in [*others, *late] for n in re.findall(r"/task:(\d{1,7})\b", e.text)} or None
    events = [*short, *clients, *others, *(late if others else [])]
    each = [int(n) for e in log.all("command") for n in _PER_NODE.findall(e.text)]
    is_started = not each or not log.nodes_wanted() or log.nodes_wanted() * max(each) >= size
    return report(events, text, "high" if sure and is_started else "medium", ranks=ranks)


_PER_NODE = re.compile(r"--nproc[-_]per[-_]node[= ](\d+)")


@cause("rendezvous-ids-differ")
def rendezvous_ids_differ(log: LogEvidence) -> Found:
    by_id = first_of_each((e["id"], e) for e in log.all("run-id"))
    if len(by_id) < 2:
        shown = ((first_value([e], "id", "id2"), e) for e in log.all("run-id-shown"))
        by_id = first_of_each((name, e) for name, e in shown if name.lower() not in ("", "none"))
        if len({(e.file, e.label, e.host) for e in by_id.values()}) < 2 or log.outcome.went_on:
            return None
    text = f"{len(by_id)} different run ids: each node waits in its own rendezvous"
    return report(by_id.values(), text)


def _overfull(log: LogEvidence) -> list[Event]:
    """Barriers at which more workers checked in than the world has."""
    return [e for e in log.all("store-barrier") if e.number("count") > e.number("size") > 0]


def _is_beyond(event: Event) -> bool:
    """Whether a rank waits in a world that is too small for its number."""
    return event.number("rank") >= event.number("size")


@cause("stale-rendezvous-state")
def stale_rendezvous_state(log: LogEvidence) -> Found:
    """
    A rendezvous file or store still holds the ids or counters of an earlier start.

    Why: the counter never equals the world size again, or the address in it belongs to no agent.
    Fix: use a fresh file per run, or a TCP store; restart against a new store.
    In logs: `File already exists:` before init, `worker_count` above `world_size`.
    """
    there, by_file = log.all("file-exists"), log.all("file-init")
    dead = log.all("gloo-connect", "gloo-mesh", "nccl-connect", "client-refused")
    if there and (log.has("store-barrier") or log.outcome.failed):
        return report([*there, *_overfull(log)], f"{there[0]['path']} is left over from an earlier start")
    if by_file and dead and not log.outcome.went_on:
        text = "the file of init_method names an address nobody answers at"
        dead.sort(key=lambda e: "NCCL INFO" in e.text)  # tries, before the call fails
        return report([*dead, *by_file], text, "medium")
    if again := of_an_earlier_attempt(log):
        text = "after a restart Gloo dials an address of the attempt before, which the store still holds"
        fix = Fix("`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` for torchrun: a store for each attempt.")
        return report(again, text, "medium", fix=fix, ranks=())
    closed = log.all("rdzv-closed", has="RendezvousClosedError")
    at_work = log.has("all-registered", "step", "loss", "closing-signal", "cancelled", "sighup", "work")
    ends = {e.place for e in log.all("exception", "exit", "exit-signal")}
    if closed and not at_work and ends <= {e.place for e in closed}:
        text = "the rendezvous is already closed: the state of an earlier run with the same id"
        return report([*closed, *log.all("run-id-shown")[:1]], text, "medium")
    text = "more workers checked in than the world has: the store's counter is an old one"
    is_unsure = _launchers_per_task(log) or any(map(_is_beyond, _overfull(log)))
    return report(_overfull(log), text, "low" if is_unsure else "medium")


def _launchers_per_task(log: LogEvidence) -> list[Event]:
    """Commands that start a launcher (or a script that spawns its ranks) in several tasks."""
    launcher = r"torchrun|torch\.distributed|deepspeed|accelerate|colossalai|launch\.py|llamafactory"
    if not log.has("spawn-call", "omp-banner") and not log.all("command", "batch-option", has=launcher):
        return []
    found = []
    for event in log.all("command", "batch-option"):
        text = event["command"] or event["command2"] or event.text
        count = re.search(r"(?:--ntasks-per-node|--ntasks|-n|-np)[= ]?(\d+)", text)
        if count and count[1][:9] not in ("0", "1") and re.search("srun|mpirun|mpiexec|SBATCH", text):
            found.append(event)
    return found


@cause("launcher-started-per-task")
def launcher_started_per_task(log: LogEvidence) -> Found:
    commands, taken = _launchers_per_task(log), log.all("eaddrinuse")
    over = [e for e in _overfull(log) if e.number("count") % e.number("size") == 0]
    if commands and (over or taken or log.outcome.failed):
        text = "a launcher runs in every task, and each starts all local ranks"
        return report([*commands, *over], text)
    if over and not log.has("file-exists", "file-init"):
        text = "a multiple of the world size checked in: several launchers for one world"
        return report(over, text, "low")
    banners = [e for e in log.all("omp-banner") if e.label or e.host]
    count = Counter((e.file, e.label, e.host) for e in banners)
    twice = [e for e in banners if count[e.file, e.label, e.host] > 1]
    text = "the launcher's banner appears several times for one node"
    return report([*twice, *taken], text, "medium") if twice and taken else None


# Ranks and sizes that contradict each other.


@cause("node-rank-duplicate")
def node_rank_duplicate(log: LogEvidence) -> Found:
    if checked := log.all("rank-checked-in"):
        rank = checked[0].number("rank")
        return report(checked, f"rank {rank} of {checked[0]['nranks']} came twice", ranks=[rank])
    owners: dict[str, dict[tuple[int, str], Event]] = defaultdict(dict)
    for event in log.all("node-rank"):
        owners[event["rank"]].setdefault((event.file, event.label or event.host or str(event.line)), event)
    several = log.nodes_wanted() > 1 and log.outcome.failed
    for node, by_place in owners.items():
        events = by_place.values()
        commands = [e for e in events if "command" in log.tags_at(e)]
        files = [e for e in events if "machine_rank:" in e.text]
        placed = [e for e in events if e.label or e.host]
        if several and max(len(commands), len(files), len(placed)) > 1:
            sure = len(owners) == 1 and log.has("clients-joined", "store-barrier", "rdzv-timeout")
            text = f"{len(events)} nodes were started with node rank {node}"
            return report(events, text, "high" if sure else "medium", ranks=())
    for event in log.all("command"):
        words = event["command"] or event["command2"]
        other = re.search(r"\bRANK=[1-9]", words) and re.search("FORCE_TORCHRUN|llamafactory", words)
        if other and "NODE_RANK" not in words:
            # Its launcher says which node rank it read; older releases did read RANK.
            shown = log.all("node-rank", rank="0", has="num nodes")
            text = "RANK is set where this launcher reads NODE_RANK: every node takes itself for node 0"
            return report([event, *shown], text, "high" if len(shown) > 1 else "low")
    if came := _came_twice(log):
        # One is refused the port that the other holds, which then waits for the rest.
        sure = log.has("eaddrinuse") and log.has("clients-joined", "store-barrier")
        text = f"rank {came[0]['rank']} of {came[0]['nranks']} was started {len(came)} times"
        return report(came, text, "high" if sure else "medium", ranks=[came[0].number("rank")])
    members = Counter((e["rank"], e["nranks"]) for e in log.all("global-rank"))
    twice = [e for e in log.all("global-rank") if members[e["rank"], e["nranks"]] > 1]
    text = f"global rank {first_value(twice, 'rank')} was started more than once"
    apart = len({(e.file, e.label or e.host) for e in twice}) > 1
    return report(twice, text, "high" if apart and log.outcome.failed else "low")


def _came_twice(log: LogEvidence) -> list[Event]:
    """The same message of one rank, twice before any failure, if another rank of its world has none."""
    worlds = log.outcome.first_attempt(log.all("rank-of-world"))
    alike = grouped(((e["rank"], e["nranks"], re.sub(r"\d+", "", e.text)), e) for e in worlds).values()
    came = {e["rank"] for e in worlds}
    twice = (same for same in alike if len(same) > 1 and len(came) < same[0].number("nranks"))
    return next(twice, []) if log.outcome.failed else []


@cause("world-size-disagrees")
def world_size_disagrees(log: LogEvidence) -> Found:
    counts = [e for e in log.all("root-count", "root-info") if e["a"] != e["b"] and not is_absurd(e)]
    if counts:
        text = f"one rank says {counts[0]['a']} ranks, another {counts[0]['b']}"
        return report(counts, text, ranks=())
    beyond = [e for e in log.all("rank-of-world") if e.number("rank") >= e.number("nranks") > 0]
    if invalid := [*log.all("invalid-rank"), *(beyond if log.outcome.failed else [])]:
        return report(invalid, f"rank {invalid[0]['rank']} does not fit into {invalid[0]['nranks']} ranks")
    found = []
    printed = log.all("world-size", "global-rank", "store-barrier")
    sizes = first_of_each((e.number("size") or e.number("size2") or e.number("nranks"), e) for e in printed)
    sizes.pop(0, None)
    apart: set[object] = {(e.file, e.label, e.host) for e in sizes.values()}
    sure = is_of_members = len({e["nranks"] for e in log.all("global-rank")}) > 1
    if len(apart) < 2:
        worlds = log.outcome.first_attempt(log.all("rank-of-world"))
        sizes = first_of_each((e.number("nranks"), e) for e in worlds)
        apart = {e["rank"] for e in sizes.values()}
        sure = len({re.sub(r"\d+", "", e.text) for e in sizes.values()}) == 1
    if len(apart) > 1 and (is_of_members or log.outcome.failed) and not log.outcome.went_on:
        shown = ", ".join(map(str, sorted(sizes)))
        text = f"nodes speak of different world sizes: {shown}"
        found.append(report(sizes.values(), text, "high" if sure else "medium"))
    if over := _overfull(log):
        text = f"{over[0]['count']} workers joined a world of {over[0]['size']}"
        found.append(report(over, text, "medium" if any(map(_is_beyond, over)) else "low"))
    return found
