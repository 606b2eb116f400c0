"""What DeepSpeed, Lightning, Accelerate, Ray and their like print."""

from __future__ import annotations

from ringup.logs.patterns.tags import tag

# fmt: off
TAGS = (
    tag("jax-register", "",
        r"CoordinationService/RegisterTask|(?:Failed to|failed to) (?:connect to|register with) (?:the )?coordination|failed to connect to (?:all addresses|client mesh master)|RegisterTask"),
    tag("jax-late-barrier", "",
        r"Barrier timed out\. (?:Barrier_)?[Ii]d: ?(?!\[Init\]|PjRT_Client_Connect|Wait_for_all)(?P<name>\S+)"),
    tag("jax-task", "context", r"^/job:[\w-]{1,40}/replica:\d{1,6}/task:\d", keep=64),
    tag("jax-barrier", "",
        r"Barrier timed out.*|Wait_for_all_tasks_to_register|Timed out task names?:|cluster registration failed|barrier .{0,60}(?:timed out|DEADLINE)|Shutdown barrier|GetKeyValue\(\) timed out"),
    tag("jax-died", "consequence",
        r"Failed to send RPC to coordination service|JAX distributed service detected fatal errors|(?:leader )?task .{0,30}(?:died|preempted|crashed)|[Tt]ask \S+ heartbeat timeout|[Tt]he tasks? (?:have|has) crashed|coordination service .{0,60}(?:unavailable|shut ?down|stopped)|Connection reset by peer.{0,40}grpc|\bSocket closed\b|CollectiveExecutor::StartAbort (?:UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED)|PollForError|tasks? .{0,40}unhealthy"),
    tag("ray-died", "consequence",
        r"A worker died or was killed|ActorDiedError|RayActorError|WorkerCrashedError|The actor (?:died|is dead)|EngineCore (?:failed|encountered|died|crashed)|EngineDeadError|actor .{0,40}died (?:unexpectedly|because)|Worker unexpectedly exits|owner .{0,20}has died|AsyncEngineDeadError|raylet .{0,20}died|Raylet failed\b|Worker exit type|has been marked dead because|mistakenly (?:been )?marked (?:as )?dead|(?:Engine core|WorkerProc) initialization failed"),
    tag("horovod-down", "consequence", r"Horovod has been shut down|HorovodInternalError"),
    tag("horovod-stalled", "",
        r"(?:One or more tensors|ranks) .{0,120}(?:stalled|waiting for)|Stalled (?:ops|ranks|tensor)(?!:? ?(?:\[\]|none))|Missing ranks(?!:? ?(?:\[\]|none)):? ?\[?(?P<ranks>[\d, ]*)|were submitted to be reduced, gathered or broadcasted by subset of ranks"),
    tag("horovod-mismatch", "",
        r"Mismatched (?:allreduce|allgather|broadcast|collective|data types|\S+) (?:tensor|operations|shapes|types)|Mismatched \w+ tensor shapes"),
    tag("mpi-unreachable", "",
        r"ORTE was unable to reliably start|unable to (?:reliably )?(?:start|launch) (?:one or more )?daemons"),
    tag("mpi-lost", "",
        r"daemon has unexpectedly failed after launch|unable to complete a TCP connection"),
    tag("pipe-broken", "consequence weak", r"BrokenPipeError|Broken pipe|EPIPE"),
    tag("reset-by-peer", "consequence",
        r"(?:ORTE|PRTE) has lost communication|Connection reset by peer|ConnectionResetError|Connection aborted|RemoteDisconnected|Stop_waiting response is expected"),
    tag("exception", "failure context local",
        r"(?:^|[\s:|\]\"(])(?P<type>(?:[A-Za-z_][\w]*\.)*(?-i:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout))):(?: (?P<text>.*))?$",
        r"^(?P<type>(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))\s*$",
        r"RayTaskError\((?P<type>[A-Z]\w*)\): (?P<carried>.*)$",
        r"^(?P<type>(?-i:Exception)):(?: (?P<text>.*))?$",
        # what a package keeps in its module of errors need not be called one
        r"^(?P<type>(?:[a-z_]\w*\.){1,12}(?:exc|exceptions|errors)\.(?-i:[A-Z])\w*)(?::(?: (?P<text>.*))?)?$",
        keep=16),
    tag("ignored", "", r"Exception ignored in"),
    tag("traceback", "context", r"Traceback \(most recent call last\)"),
    tag("frame", "context",
        r"(?:^|: |\) )\s*File \"(?P<file>[^\"]+)\", line (?P<number>\d+)(?:, in (?P<function>\S+))?",
        keep=0),
)
