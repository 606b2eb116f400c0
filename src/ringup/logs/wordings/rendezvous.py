"""What torch prints while ranks meet: torchrun, the store, Gloo."""

from __future__ import annotations

from ringup.logs.wordings import ERRNO, say

LAUNCH = (
    say("run-id", r"generated a random run_id: (?P<id>\S+)", "random run_id"),
    say(
        "run-id-shown",
        r"^\s*run_id\s+: (?P<id>\S+)|--rdzv[-_]id[= ](?P<id2>[^\s$]+)",
        "run_id ",
        "rdzv_id",
        "rdzv-id",
    ),
    say("rdzv-backend", r"rdzv[-_]backend(?:\s*:|[= ])\s*(?P<backend>\w+)", "rdzv_backend", "rdzv-backend"),
    say(
        "rdzv-endpoint",
        r"rdzv[-_]endpoint(?:\s*:|[= ])\s*(?P<endpoint>[^\s,]+)",
        "rdzv_endpoint",
        "rdzv-endpoint",
    ),
    say("entrypoint", r"^\s*entrypoint\s+: (?P<entrypoint>.*?)\s*$", "entrypoint  "),
    say(
        "min-nodes",
        r"min_nodes\s+: (?P<nodes>\d+)|--nnodes[= ](?P<nodes2>\d+)|--num[-_]nodes[= ](?P<nodes3>\d+)|(?:--num_machines[= ]|\bnum_machines: )(?P<nodes4>\d+)|\bNNODES=(?P<nodes5>\d+)",
        "min_nodes",
        "--nnodes",
        "num_nodes",
        "num-nodes",
        "num_machines",
        "nnodes=",
    ),
    say("global-ranks", r"global_ranks=\[(?P<ranks>[\d, ]+)\]", "global_ranks="),
    say("group-rank", r"group_rank=(?P<rank>\d+)", "group_rank="),
    say(
        "node-rank",
        r"(?:--node[-_]rank[= ]|\bnode[_ ]rank(?:=|: ?)|--machine[-_]rank[= ]|\bmachine_rank: |\bNODE_RANK=)(?P<rank>\d+)",
        "node_rank",
        "node-rank",
        "node rank",
        "machine_rank",
        "machine-rank",
    ),
    say(
        "all-registered",
        r"All (?:distributed|DDP) processes registered|Starting with \d+ processes",
        "processes registered",
        "starting with ",
    ),
    say("global-rank", r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: (?P<member>\d+)/(?P<nranks>\d+)", "global_rank"),
    say(
        "command",
        r"^\s*(?:(?:\([\w.-]{1,40}\) ?)?\S+@\S+[:~ ].{0,60}?[$#]|[$#>+]) ?(?P<command>(?:[A-Z_]+=\S* )*(?:\\$|srun|sbatch|mpirun|mpiexec|horovodrun|torchrun|python\S*|deepspeed|accelerate|colossalai|llamafactory-cli|ssh|pdsh|kubectl|docker|sudo|bash|\./|/)\S*.*)$",
        "$ ",
        "# ",
        "> ",
        "+ ",
    ),
    say(
        "command",
        r"\bcmd ?= ?(?P<command>\[?'?\S+.*)$|^\s*(?P<command2>(?:srun|torchrun|mpirun|deepspeed|accelerate launch) +(?:-|torchrun|python|bash|accelerate|deepspeed).*)$",
        "cmd",
        "srun ",
        "torchrun ",
        "mpirun ",
        "deepspeed ",
        "accelerate launch ",
    ),
    say(
        "batch-option",
        r"#SBATCH.*?(?P<option>--ntasks-per-node|--ntasks|-n|--gpus-per-task)[= ](?P<count>\d+)",
        "#sbatch",
    ),
    say("spawn-call", r"mp\.spawn\(|torch\.multiprocessing\.spawn|multiprocessing/spawn\.py", "spawn"),
    say("omp-banner", r"Setting OMP_NUM_THREADS environment variable for each process", "omp_num_threads"),
    say("file-init", r"init_method\S* ?[=:]? ?['\"]?file://|file:///\S*|FileStore", "file://", "filestore"),
    say("file-exists", r"File already exists: (?P<path>\S+)", "file already exists"),
    say(
        "world-size",
        r"\bworld[_ ]?size\s*[=:]\s*(?P<size>\d+)|\bWORLD_SIZE=(?P<size2>\d+)",
        "world_size",
        "world size",
        "worldsize",
    ),
)

STORE = (
    say(
        "eaddrinuse",
        r"EADDRINUSE|errno: 98\b|code: -98\b|\[Errno 98\]|Address already in use|address already in use|another process is utilizing|port \d+ is already (?:in use|allocated)(?!\W{1,3}(?:us|try)ing)|Only one usage of each socket address|bind\(\) failed.*\b98\b|errno ?= ?98\b|\[Errno 48\]|port already in use",
        "eaddrinuse",
        "98",
        "already in use",
        "already allocated",
        "is utilizing",
        "only one usage",
        "errno 48",
    ),
    say(
        "listen-failed",
        r"server socket has failed to (?:listen|bind)(?:.*?port: (?P<port>\d+))?",
        "server socket has failed",
    ),
    say(
        "no-ipv6",
        r"errno: 97\b|Address family not supported by protocol",
        "errno: 97",
        "address family not supported",
    ),
    say(
        "client-refused",
        r"client socket has failed to connect to (?P<peer>\S+) \(errno: (?P<errno>\d+)",
        "client socket has failed to connect",
    ),
    say(
        "client-failed-any",
        r"failed to connect to any network address of \((?P<host>[^,)]+), (?P<port>\d+)\)",
        "any network address",
    ),
    say(
        "client-timeout",
        r"client socket has timed out after (?P<waited>[\d.]+ ?m?s)\w* while trying to connect to \(?(?P<host>[^,:)\s]+|\[[^\]]*\])[,:] ?(?P<port>\d+)",
        "client socket has timed out",
    ),
    say(
        "client-timeout",
        r"connect\(\) timed out\.? Original timeout was (?P<waited>\d+ ms)",
        "connect() timed out",
    ),
    say(
        "client-timeout",
        r"Timed out (?:trying|waiting) to connect to (?:the )?(?:store|master|server|rendezvous)",
        "to connect to",
    ),
    say(
        "store-timeout",
        r"DistStoreError: (?:Socket Timeout|Timed out)|DistStoreError: Timed out after|TCPStore\(?.{0,80}(?:timed out|Connection refused)",
        "diststoreerror",
        "tcpstore",
    ),
    say(
        "tcpstore-retry",
        r"TCP client failed to connect/validate to host (?P<host>\S+?):(?P<port>\d+) - (?P<how>retrying|timed out).*?(?:Connection reset|Broken pipe)",
        "failed to connect/validate",
    ),
    say(
        "clients-joined",
        r"(?:Timed out after|timed out).{0,40}waiting for clients\. (?P<joined>\d+)/(?P<wanted>\d+) clients joined",
        "clients joined",
    ),
    say(
        "store-wait",
        r"(?:wait timeout after|Wait timeout|Timeout waiting for key|Timed out waiting for key).{0,40}?(?:keys?: ?(?P<key>\S+))?",
        "wait timeout",
        "timeout waiting for key",
        "timed out waiting for key",
    ),
    say("wait-poll", r"waitForInput: poll for socket .*? returned 0", "waitforinput"),
    say(
        "rdzv-connection",
        r"RendezvousConnectionError|connection to the C10d store has failed|c10d_rendezvous_backend\.py.{0,60}_create_tcp_store",
        "rendezvousconnectionerror",
        "c10d store has failed",
        "_create_tcp_store",
    ),
    say(
        "rdzv-create",
        r"_create_tcp_store|in __init__.*create_backend|create_c10d_rendezvous|create_backend\(params\)",
        "_create_tcp_store",
        "create_backend",
    ),
    say("rdzv-timeout", r"RendezvousTimeoutError", "rendezvoustimeouterror"),
    # Horovod's launcher, whose tasks are to come back to it.
    say(
        "rdzv-timeout",
        r"Timed out waiting for .{1,80}\. Please check connectivity between servers",
        "check connectivity between servers",
    ),
    say(
        "rdzv-closed",
        r"RendezvousClosedError|RendezvousGracefulExitError|RendezvousStateError",
        "rendezvousclosed",
        "rendezvousgraceful",
        "rendezvousstate",
    ),
    say(
        "keepalive-failed",
        r"failed to send a keep-alive heartbeat|failed to shutdown the rendezvous|has failed to (?:remove itself|leave)",
        "keep-alive",
        "shutdown the rendezvous",
        "has failed to",
    ),
    say("num-nodes-waiting", r"num_nodes_waiting", "num_nodes_waiting"),
    say(
        "store-barrier",
        r"store[- ]based barrier.*?rank:? (?P<rank>\d+).*?key: ?(?:\S*?:)?(?P<key>\d+)? ?.*?world_size=(?P<size>\d+), (?:worker_count|num_workers_joined)=(?P<count>\d+)",
        "store based barrier",
        "store-based barrier",
    ),
    say(
        "store-barrier",
        r"world_size=(?P<size>\d+), (?:worker_count|num_workers_joined)=(?P<count>\d+)",
        "worker_count",
        "num_workers_joined",
    ),
    say("store-get", r"store->get\('(?P<key>[^']*)'\) got error: (?P<reason>[^\n.]*)", "store->get("),
    say("elastic-exit-barrier", r"_exit_barrier|exit barrier", "exit barrier", "_exit_barrier"),
    say(
        # Old torch's TCPStore raises the system's words alone.
        "store-errno",
        r"RuntimeError: (?:Connection timed out|Connection refused|No route to host|(?:Network|Host) is unreachable)\s*$",
        "runtimeerror: ",
    ),
)

GLOO = (
    say(
        "gloo-no-address",
        r"(?<!rp != nullptr\. )Unable to find address for: ?(?P<name>\S+)",
        "unable to find address for",
    ),
    say(
        # Gloo takes the addresses of the host's own name, and none of them can be bound here.
        "gloo-name-not-here",
        r"rp != nullptr\. Unable to find address for: ?(?P<name>\S+)|Unable to find interface for: ?\[?(?P<address>[^\]\s]+)",
        "unable to find address for",
        "unable to find interface for",
    ),
    say(
        "gloo-loopback",
        r"Unable to resolve hostname to a \(local\) address|Using the loopback",
        "resolve hostname to a (local)",
        "using the loopback",
    ),
    say("gloo-remote", r"remote=\[?(?P<address>[^\],\s]+)", "remote="),
    say(
        "getent-loopback",
        r"^\s*(?P<address>127\.0\.\d+\.\d+)\s+(?P<names>(?!localhost\b)[\w.-]+)(?:\s|$)",
        "127.0.",
    ),
    say(
        "gloo-connect",
        r"(?:SO_ERROR|connect(?:ing)?(?: \S+)?|timed out connecting|connectFullMesh).{0,200}?(?P<reason2>"
        + ERRNO[len("(?P<reason>") : -1]
        + r").{0,120}?remote=\[?(?P<address>[^\],\s]+)\]?",
        "remote=",
    ),
    say("gloo-connect", r"gloo/transport/tcp/\w+\.cc:\d+\] .{0,60}\bconnect: " + ERRNO, "gloo/transport/tcp"),
    say("gloo-connect", r"\bconnect \[(?P<address>[0-9a-fA-F.:]+)\](?::\d+)?: " + ERRNO, "connect ["),
    say(
        "gloo-connect",
        r"failed to connect.{0,60}remote=\[?(?P<address>[^\],\s]+)\]?.{0,80}?" + ERRNO,
        "failed to connect",
    ),
    say(
        "gloo-mesh",
        r"connectFullMesh failed|Gloo .{0,20}connect.{0,20} failed|(?:gloo\S*|pair\.cc\S*) ?\]? ?connect \S+: ?"
        + ERRNO,
        "connectfullmesh",
        "gloo",
        "pair.cc",
    ),
    say("gloo-family", r"ss1\.ss_family == ss2\.ss_family", "ss_family"),
    say("gloo-closed", r"Connection closed by peer(?: \[(?P<address>[^\]]+)\])?", "closed by peer"),
    say(
        "gloo-reset",
        r"(?:Read|Write) error \[(?P<address>[^\]]+)\].{0,20}?(?:Connection reset|Broken pipe|Connection timed out)|writev \[.{0,40}Connection reset|\[\S*gloo\S*\].{0,40}(?:Connection reset by peer|Broken pipe)",
        "read error",
        "write error",
        "writev [",
        "gloo",
    ),
    say(
        "recv-vector",
        r"recvVector failed|recvValue failed|sendBytes failed|recvBytes|Failed to recv, got 0 bytes|Connection was likely closed",
        "recvvector",
        "recvvalue",
        "sendbytes",
        "recvbytes",
        "got 0 bytes",
        "was likely closed",
    ),
    say(
        "gloo-recv-timeout",
        r"Timed out waiting (?P<ms>\d+) ?ms for (?P<what>recv|send) operation|gloo/transport/\S+\] (?:Read|Write) timeout \[",
        "timed out waiting",
        "read timeout",
        "write timeout",
    ),
    say(
        "preamble",
        r"op\.preamble\.(?:length|nbytes) ?<= ?op\.nbytes|Received data size doesn't match expected size|collective mismatch in your code|enforce fail .{0,120}preamble",
        "preamble",
        "received data size",
        "mismatch in your code",
    ),
    say(
        "monitored-barrier", r"Ranks? (?P<ranks>[\d, ]+?) failed to pass monitoredBarrier", "monitoredbarrier"
    ),
    say(
        "monitored-victim",
        r"successfully reached monitoredBarrier|monitoredBarrier timed out|Please check rank (?P<rank>\d+) logs for faulty rank",
        "monitoredbarrier",
        "faulty rank",
    ),
)
