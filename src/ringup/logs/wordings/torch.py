"""What torch and training scripts print once they run, and at their end."""

from __future__ import annotations

from ringup.logs.wordings import say

WATCHDOG = (
    say(
        "work",
        r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<nin>\d+))?(?:, NumelOut=(?P<nout>\d+))?(?:, Timeout\(ms\)=(?P<timeout>\d+))?\)?(?:.*?ran for (?P<ran>\d+))?",
        "worknccl(",
    ),
    say(
        "work",
        r"Watchdog caught collective operation timeout(?P<op>)",
        "watchdog caught collective",
    ),
    say(
        "work-state",
        r"(?:Timeout at NCCL work|detected by watchdog at work|Timeout at collective|work): (?P<seq>\d+), last enqueued (?:NCCL )?work: (?P<enqueued>\d+), last completed (?:NCCL )?work: (?P<completed>\d+)",
        "last enqueued",
    ),
    say("work-async", r"raised the following async exception: (?P<text>.*)$", "async exception"),
    say(
        "work-aborted",
        r"NCCL communicator was aborted on rank (?P<rank>\d+)|To avoid data inconsistency, we are taking|Some NCCL operations have failed or timed out|watchdog thread terminated with exception|Received a dump signal (?:due to|from)|another rank|dump signal from (?:this|another)",
        "was aborted on rank",
        "taking the entire process down",
        "have failed or timed out",
        "watchdog thread terminated",
        "dump signal",
        "another rank",
        "data inconsistency",
    ),
    say(
        "watchdog-stuck",
        r"watchdog got stuck for (?P<seconds>\d+) seconds|Heartbeat monitor timed out|ProcessGroupNCCL's watchdog got stuck|watchdog hang",
        "watchdog got stuck",
        "heartbeat monitor timed out",
        "watchdog hang",
    ),
    say(
        "flight-mismatch",
        r"(?:Detected mismatch between collectives on ranks?|collectives do not match|Mismatch between collective operation types)",
        "mismatch",
        "do not match",
    ),
    say(
        "desync-report",
        r"\[(?P<ranks>[\d, ]+)\] (?:joined but didn't finish|finished|failed to join) collective #(?P<seq>\d+)|desync(?:hroni[sz])|Ranks? \[(?P<missing>[\d, ]+)\] (?:never|did not|didn't) (?:join|enter|participate)",
        "joined but didn't",
        "collective #",
        "desync",
        "never",
        "did not",
        "didn't",
    ),
    say(
        "xla-threads",
        r"Expected (?P<wanted>\d+) threads to join.{0,80}not all (?:of them )?arrived(?: on time)?|Expected \d+ threads to join the rendezvous, but (?:only )?(?P<came>\d+)|rendezvous.{0,40}(?:may be )?stuck|This thread has been waiting for .{0,60}rendezvous",
        "threads to join",
        "may be stuck",
        "has been waiting for",
    ),
)

TRAINING = (
    say(
        "main-first",
        r"main_process_first|local_main_process_first|zero_first|with torch_distributed_zero_first",
        "process_first",
        "zero_first",
    ),
    say(
        "progress",
        r"(?P<what>[A-Za-z][\w #/().=-]{0,60}?)?:? *(?P<percent>\d{1,3})%\|.*?\[(?P<elapsed>(?:\d+:)?\d{1,3}:\d\d)<(?P<left>\S+?)[,\]]",
        "%|",
    ),
    say(
        "busy-word",
        r"\b(?P<what>Saving (?:the |latest |model |optimizer |final |a )*(?:checkpoint|model|state|optimizer|weights|snapshot|sharded)\w*|save_checkpoint|[Ss]aving .{0,40}(?:checkpoint|to disk|to /)|[Tt]okeniz\w+|Running tokenizer|[Pp]reprocess\w*|Generating train split|[Dd]ownloading|[Bb]uilding (?:the )?(?:index|dataset|sample|doc)|(?:> )?(?:building|loading) .{0,20}(?:indices|index map|index|dataset)|Loading checkpoint shards|Grouping texts|(?:Start(?:ing)?|Running|Begin) (?:\w+ )?(?:eval|validation|evaluation|inference)\w*|[Ee]valuat(?:ing|ion)|[Cc]onverting|[Uu]nzip|[Ee]xtracting|Loading (?:dataset|data|the dataset))",
        "sav",
        "tokeniz",
        "preprocess",
        "generating",
        "downloading",
        "building",
        "loading",
        "grouping",
        "eval",
        "converting",
        "unzip",
        "extracting",
        "inference",
        "validation",
    ),
    say(
        "epoch-done",
        r"(?:epoch|training|train)\S* .{0,40}(?:finished|complete[d]?|done)\b|\b(?:Finished|Completed) (?:training|epoch)|Training completed|StopIteration|ran out of (?:data|batches)|(?:data(?:loader|set)?|iterator) (?:is )?exhausted",
        "finished",
        "complete",
        "done",
        "stopiteration",
        "ran out of",
        "exhausted",
    ),
    say(
        "uneven-word",
        r"uneven (?:inputs|batches|number)|unequal (?:lengths?|number)|IterableDataset|different number of (?:batches|samples|iterations|steps)|Join context|exhausted all \d+ inputs, but|other ranks still have inputs|len\((?:train_)?(?:data)?loader\)",
        "uneven",
        "unequal",
        "iterabledataset",
        "different number of",
        "join context",
        "exhausted all",
        "still have inputs",
        "loader)",
    ),
    say(
        "step",
        r"(?:\bstep|\biter(?:ation)?|\bepoch|\bbatch)[ s:=#\[]+(?P<step>\d+)",
        "step",
        "iter",
        "epoch",
        "batch",
    ),
    say("loss", r"\b\w*loss[\"']?(?: ?[:=] ?| )-?\d+\.\d", "loss"),
    say(
        "ddp-same-model",
        r"DDP expects same model across all ranks.*?has (?P<mine>\d+) params, while rank (?P<rank>\d+) has inconsistent (?P<theirs>\d+) params",
        "expects same model",
    ),
    say("ddp-same-model", r"inconsistent (?P<theirs>\d+) params", "inconsistent "),
    say(
        "ddp-shapes",
        r"appears not to match (?:sizes|strides) of the same param|params? .{0,40}shape .{0,60}(?:does not match|mismatch).{0,40}rank|model (?:parameters )?(?:mismatch|differ)\w* (?:across|between) ranks",
        "appears not to match",
        "shape",
        "model",
    ),
    say(
        "ddp-unused",
        r"Expected to have finished reduction in the prior iteration|find_unused_parameters=True|parameters that were not used in producing loss|Parameter(?:s| indices) which did not receive grad for rank|wasn't able to locate the output tensors|marked (?:as )?ready twice|mark a variable ready only once",
        "finished reduction",
        "not used in producing loss",
        "did not receive grad",
        "locate the output tensors",
        "ready twice",
        "ready only once",
    ),
    say(
        "unused-warning",
        r"find_unused_parameters=True was specified in DDP constructor, but did not find any",
        "did not find any",
    ),
    say(
        "unclosed-group",  # a process that ends of itself says so, from its process group's destructor
        r"destroy_process_group\(\) was not called before|process group has NOT been destroyed before",
        "destroy_process_group",
        "process group has not",
    ),
    say("wrong-values", r"Out of bounds values ?: (?P<count>[1-9]\d*)", "out of bounds values"),
    say(
        "nccl-tests-row",
        r"^\s*\d+\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+(?P<wrong>\d+|N/A)\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+(?P<wrong2>\d+|N/A)",
        "float",
        "half",
        "double",
        "int32",
        "bfloat",
        "uint8",
        "int8",
        "int64",
    ),
    say(
        "sum-check",
        r"assert .{0,80}(?:==|!=) ?(?:world_size|nranks|num_ranks|dist\.get_world_size\(\))|(?:all_?reduce|allreduce|broadcast)\w* .{0,40}(?:result|sum|value)s? .{0,20}(?:wrong|incorrect|mismatch|unexpected|differ)|(?:wrong|incorrect) (?:all_?reduce|allreduce|sum)",
        "assert ",
        "all_reduce",
        "allreduce",
        "all-reduce",
        "wrong result",
        "expected ",
    ),
    say(
        "loader-bus",
        r"DataLoader worker \(pid\(?s?\)? ?[\d, ]*\) (?:is killed by signal: Bus error|exited unexpectedly.{0,80}bus)|Unexpected bus error encountered in worker|insufficient shared memory \(shm\)|out of shared memory",
        "bus error",
        "insufficient shared memory",
        "out of shared memory",
    ),
    say(
        "shm-torch",
        r"unable to (?:allocate|open|mmap|resize|write to) (?:shared memory(?: object)?|file)\b.{0,80}|unable to write to file </torch_|shared memory\(shm\)|torch_shm_manager.{0,80}(?:No space|failed)",
        "shared memory",
        "</torch_",
        "torch_shm_manager",
    ),
    say(
        "loader-killed",
        r"DataLoader worker \(pid\(?s?\)? ?(?P<pids>[\d, ]+)\) is killed by signal: (?P<signal>\w+)",
        "is killed by signal",
    ),
    say(
        "state-dict",
        r"size mismatch for \S+: copying a param with shape",
        "size mismatch for",
    ),
    say(
        "loader-exited",
        r"DataLoader worker \(pid\(s\) (?P<pids>[\d, ]+)\) exited unexpectedly",
        "exited unexpectedly",
    ),
)

ELASTIC = (
    # The last words of `ringup run`, which saw every end.
    say(
        "exit",
        r"^first failure: rank (?P<rank>\d+) on (?P<host>\S+): (?:.{1,400} \()?"
        r"(?:exit code (?P<code>\d+)|killed by (?P<name>SIG\w+)).{0,80}, .{1,40}(?P<first>after the start)",
        "first failure",
    ),
    say(
        "run-hung",
        r"^hung after .{1,30}: ranks? (?P<ranks>\d[\d, .]*) on (?P<nodes>.{1,600}) (?P<first>missing from) (?P<op>.{1,64})$",
        "hung after",
    ),
    say("exit", r"exitcode\s*: (?P<code>-?\d+)(?: +\(pid: (?P<pid>\d+)\))?", "exitcode"),
    say(
        "exit",
        r"failed \(exitcode: (?P<code>-?\d+)\)(?: local_rank: (?P<local>\d+))?(?: \(pid: (?P<pid>\d+)\))?",
        "failed (exitcode",
    ),
    say("summary-host", r"^\s*host\s+: (?P<host>\S+)", "host  "),
    say("summary-rank", r"^\s*rank\s+: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)", "rank  "),
    say(
        "exit-signal",
        r"Signal (?P<signal>\d+) \((?P<name>SIG\w+)\) received by PID (?P<pid>\d+)",
        "received by pid",
    ),
    say(
        "exit",
        r"process (?P<index>\d+) terminated with (?:signal (?P<name>SIG\w+)|exit code (?P<code>\d+))",
        "terminated with",
    ),
    say("exit", r"died with <Signals\.(?P<name>SIG\w+)", "died with"),
    say(
        "exit",
        r"exits? with return code ?=? ?(?P<code>-?\d+)|Killing subprocess (?P<pid>\d+)(?P<none>)$",
        "return code",
    ),
    say(
        "exit",
        r"(?:srun|slurmstepd): error: (?P<host>[\w.-]+): tasks? (?P<task>[\d,-]+): (?:Exited with exit code (?P<code>\d+)|(?P<name>Killed|Segmentation fault|Aborted|Bus error|Terminated|Out Of Memory|Illegal instruction|Floating point exception))",
        "task",
    ),
    # Hydra (MPICH, Intel MPI) prints the wait status, whose low bits are the signal.
    say(
        "exit",
        r"= +(?:KILLED BY SIGNAL: (?P<signal>\d+)|EXIT CODE: (?P<signal2>[4-9]|11|15)\s*$)"
        r"|EXIT STRING: .{0,80}\(signal (?P<signal3>\d+)\)",
        "killed by signal",
        "exit code: ",
        "exit string",
    ),
    say(
        "exit",
        r"exited on signal (?P<signal>\d+)|Exit code: +(?P<code>\d+)(?: *\(| *$)|(?:exit|exited with) (?:code|status)[: =]+(?P<code2>1[3-9]\d)\b",
        "exited on signal",
        "exit code:",
        "exit code 1",
        "exit status 1",
        "status 1",
        "exited with",
    ),
    say(
        "exit",
        r"Process (?P<pid>\d+) (?:was )?(?:killed|terminated) by signal (?P<signal>\d+)|terminated by signal (?P<name>SIG\w+)",
        "by signal",
    ),
    say(
        "exit",  # a program that gives up MPI, in the words of Open MPI
        r"(?:MPI_ABORT was invoked on rank (?P<rank>\d+) in .{1,120})?\bwith errorcode (?P<code>\d+)",
        "with errorcode",
    ),
    say(
        "exit",  # and of MPICH and Intel MPI
        r"application called MPI_Abort\(.{1,60}, (?P<code>\d+)\) - process (?P<rank>\d+)",
        "called mpi_abort",
    ),
    say(
        "exit",  # Composer's launcher
        r"\b[Rr]ank (?P<rank>\d+)(?: \(PID (?P<pid>\d+)\))? (?:crashed with exit|exited with) code (?P<code>-?\d+)",
        "crashed with exit code",
        "exited with code",
    ),
    say(
        "exit",  # Lightning's launcher
        r"Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)(?:\. (?P<ends>Forcefully))?",
        "terminated with code",
    ),
    say("closing-signal", r"Sending process (?P<pid>\d+) closing signal (?P<name>SIG\w+)", "closing signal"),
    say(
        "death-signal",
        r"Received (?P<signal>\d+) death signal|got signal: (?P<signal2>\d+)|Received Signals\.(?P<name>SIG\w+) death signal|SignalException: Process \d+ got signal: (?P<signal3>\d+)",
        "death signal",
        "got signal",
    ),
    say(
        "child-failed",
        r"ChildFailedError|Root Cause \(first observed failure\)",
        "childfailederror",
        "first observed failure",
    ),
)
