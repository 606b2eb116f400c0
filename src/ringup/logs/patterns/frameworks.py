"""Lines of DeepSpeed, Lightning, Accelerate, Ray and similar, and of launchers around the output of their ranks."""

from __future__ import annotations

from ringup.logs.patterns.tags import tag

# fmt: off
TAGS = (
    tag("jax-register", "establishing",
        r"CoordinationService/RegisterTask|(?:Failed to|failed to) (?:connect to|register with) (?:the )?coordination|failed to connect to (?:all addresses|client mesh master)|RegisterTask|mesh_service\.cc.{0,80}WaitForConnected"),
    tag("jax-late-barrier", "setting",
        r"Barrier timed out\. (?:Barrier_)?[Ii]d: ?(?!\[Init\]|PjRT_Client_Connect|Wait_for_all)(?P<name>\S+)"),
    tag("jax-task", "context", r"^/job:[\w-]{1,40}/replica:\d{1,6}/task:\d", keep=64),
    tag("jax-barrier", "setting",
        r"Barrier timed out(?!.{0,80}proceeding).*|TPU backend initialization is taking more than|Wait_for_all_tasks_to_register|Timed out task names?:|cluster registration failed|barrier .{0,60}(?:timed out(?!.{0,80}proceeding)|DEADLINE)|Shutdown barrier|GetKeyValue\(\) timed out"),
    tag("jax-died", "consequence",
        r"Failed to send RPC to coordination service|JAX distributed service detected fatal errors|(?:leader )?task .{0,30}(?:died|preempted|crashed)|[Tt]ask \S+ heartbeat timeout|(?P<peer>/job:\S{1,80}) unexpectedly tried to connect with a different incarnation|[Tt]he tasks? (?:have|has) crashed|coordination service .{0,60}(?:unavailable|shut ?down|stopped)|Connection reset by peer.{0,40}grpc|(?<!ZMQ )\bSocket closed\b|CollectiveExecutor::StartAbort (?:UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED)|PollForError|(?<!one of the )tasks? .{0,40}unhealthy"),
    tag("ray-retried", "", r"retries remaining, so the task will be retried"),
    tag("ray-died", "consequence",
        r"A worker died or was killed|ActorDiedError|RayActorError|WorkerCrashedError|The actor (?:died|is dead)|EngineCore (?:failed|encountered|died|crashed)|EngineDeadError|actor .{0,40}died (?:unexpectedly|because)|Worker unexpectedly exits|owner .{0,20}has died|AsyncEngineDeadError|raylet .{0,20}died|Raylet failed\b|Worker exit type|has been marked dead because|mistakenly (?:been )?marked (?:as )?dead|(?:Engine core|WorkerProc) initialization failed"),
    tag("horovod-down", "consequence", r"Horovod has been shut down|HorovodInternalError"),
    tag("horovod-stalled", "",
        r"(?:One or more tensors|ranks) .{0,120}(?:stalled|waiting for)|Stalled (?:ops|ranks|tensor)(?!:? ?(?:\[\]|none))|Missing ranks(?!:? ?(?:\[\]|none)):? ?\[?(?P<ranks>[\d, ]*)|were submitted to be reduced, gathered or broadcasted by subset of ranks"),
    tag("horovod-mismatch", "",
        r"(?-i:Mismatched) (?:\w+ (?:tensor|operations|shapes)|data types)"),
    tag("mpi-unreachable", "",
        r"ORTE was unable to reliably start|unable to (?:reliably )?(?:start|launch) (?:one or more )?daemons"),
    tag("mpi-lost", "", r"daemon has unexpectedly failed after launch|unable to complete a TCP connection"),
    tag("pipe-broken", "consequence weak", r"BrokenPipeError|Broken pipe|EPIPE"),
    tag("reset-by-peer", "consequence",
        r"Connection reset by peer|ConnectionResetError|Connection aborted|RemoteDisconnected|Stop_waiting response is expected"),
    tag("exception", "failure context local",
        r"(?:^|[\s:|\]\"(])(?P<type>(?:[A-Za-z_][\w]*\.)*(?-i:(?!LustreError)[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout))):(?: (?P<text>.*))?$",
        r"^(?P<type>(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))\s*$",
        r"RayTaskError\((?P<type>[A-Z]\w*)\): (?P<carried>.*)$",
        r"^(?P<type>(?-i:Exception)):(?: (?P<text>.*))?$",
        # what a package keeps in its module of errors need not be called one
        r"^(?P<type>(?:[a-z_]\w*\.){1,12}(?:exc|exceptions|errors)\.(?-i:[A-Z])\w*)(?::(?: (?P<text>.*))?)?$",
        keep=16),
    tag("ignored", "", r"Exception ignored in|^--- Logging error ---|^Error in (?:site|user)customize;"),
    tag("direct-cause", "", r"^The above exception was the direct cause"),
    tag("call-stack", "", r"^Call stack:$"),
    tag("thread", "", r"(?:^|\) )Exception in thread \S"),
    tag("traceback", "context", r"Traceback \(most recent call last\)"),
    tag("frame", "context setting",
        r"(?:^|: |\) )\s*File \"(?P<file>[^\"]{1,400})\", line (?P<number>\d+)(?:, in (?P<function>\S+))?",
        keep=0),
    # Launchers, around the words of the ranks they started: wrappings, ends, numbers of ranks.
    # An exception on such a line is the launcher's own: another process's end is behind it.
    tag("wrapping", "consequence weak",
        r"Horovod detected that one or more processes exited|(?:mpirun|mpiexec|prterun|jsrun|horovodrun|srun)\b.{0,40} failed with exit code"
        r"|Terminating remaining workers after failure|Job has failed\. Last state|Failed to run the task .{0,80}exit code"),
    tag("ray-head", "failure hang",
        r"(?:Failed|Unable) to connect to GCS|Failed to get (?:cluster ID|system config) from GCS|[Tt]imed out while waiting for GCS|GCS may have been killed|Could not find any running Ray instance"
        r"|Ray Client.{0,60}timed? ?out|raylet .{0,60}(?:failed|unable) to connect to .{0,20}GCS"),
    # A rank that is not below the world size printed with it.
    tag("rank-of-world", "context",
        r"\brank < size\. (?P<rank>\d+) vs (?P<nranks>\d+)",
        r"(?<!local )(?<!node )(?<!group )(?<!machine )(?<!parallel )(?<![tpdce]p )\brank[ :=]+(?P<rank>\d+)(?: of |/|,? ?\(?world[_ ]?size[ :=]+)(?P<nranks>\d+)\b",
        keep=64),
    # Events and states of Kubernetes; pyxis starts containers in Slurm.
    tag("pod-unscheduled", "",
        r"(?:pod/(?P<pod>[\w.-]{1,80})\s.{0,80})?(?P<why>\d{1,6}/\d{1,6} nodes are available: .{1,160})",
        r"FailedScheduling\b|tasks in gang unschedulable|^\s*PodScheduled\s+False\b",
        r"^\s*(?:pod/)?(?P<pod>[\w.-]{1,80})\s+0/\d{1,3}\s+Pending\s+0\s+\d{1,6}[mhd]"),
    tag("pod-assigned", "",
        r"Successfully assigned (?:[\w.-]{1,80}/)?(?P<pod>[\w.-]{1,80}) to ",
        r"^\s*(?:pod/)?(?P<pod>[\w.-]{1,80})\s+\d{1,3}/\d{1,3}\s+(?:Running|Completed)\s+\d"),
    tag("container-unstarted", "",
        r"(?P<why>error adding container to network .{1,120}|\bplugin type=\S{1,60} .{0,60}failed \(add\): .{1,160}|Allocate failed due to .{1,120})",
        r"(?:pod/(?P<pod>[\w.-]{1,80})\s.{0,80})?(?:Failed to pull|Back-off pulling) image \"(?P<image>[^\"]{1,200})\"(?:: (?P<why>.{1,160}))?",
        r"^\s*(?:pod/)?(?P<pod>[\w.-]{1,80})\s+\d{1,3}/\d{1,3}\s+(?P<why>(?:Init:)?(?:ErrImage\w{1,9}|ImagePullBackOff|InvalidImageName|CreateContainer\w{0,6}Error|RunContainerError)\b)",
        r"(?:pod/(?P<pod>[\w.-]{1,80})\s.{0,80})?(?P<why>\b(?:ErrImagePull|ImagePullBackOff|ErrImageNeverPull|InvalidImageName|CreateContainer(?:Config)?Error|RunContainerError)\b)",
        r"(?:pod/(?P<pod>[\w.-]{1,80})\s.{0,80})?(?P<why>(?:MountVolume|AttachVolume)\.\w{1,40} failed for volume .{1,120}|Unable to attach or mount volumes.{0,120}|Failed to create pod sandbox.{0,120})",
        r"in pod \"(?P<pod>[\w.-]{1,80})\" is waiting to start: (?P<why>trying and failing to pull image)",
        # Apptainer and Singularity
        r"FATAL: {1,6}(?P<why>(?:container creation failed|While checking container encryption|[Cc]ould not open image).{1,160})",
        r"(?P<why2>pull access denied for .{1,120}|manifest for \S{1,120} not found|could not select device driver .{1,80})",
        # docker and containerd, whose hook is NVIDIA's
        r"(?<!   )nvidia-container-cli(?:\.real)?: (?P<why>\w{1,20} error: .{1,120})", r"failed to create (?:containerd |shim )?task\b|\bOCI runtime create failed"),
    tag("step-unlaunched", "",
        r"(?<!epilog: )error: pyxis: (?P<why>(?:error: |(?:failed to|couldn't|could not) (?!clean|remove|unlink)).{1,120})|(?P<why2>task \d{1,7} launch failed: .{1,80})"
        r"|(?P<why3>StepId=\S{1,30} aborted before step completely launched)|Failed to invoke spank plugin stack|Plugin stack initialization failed"
        r"|Task launch for \S{1,40} failed on node (?P<host>\S{1,80}): (?P<why4>.{1,80})|(?P<why5>Prolog (?:failure|failed|hung) on node \S{1,80}|launch[_ ]failed[_ ]requeued[_ ]held)"
        r"|exiting abnormally: (?P<why6>.{1,80})"
        r"|error: pyxis: {4,8}nvidia-container-cli(?:\.real)?: (?P<why7>\w{1,20} error: .{1,80})",
        r"srun: error: (?P<why>Invalid MPI type [^,]{1,40}),"),
    tag("mpi-singleton", "",
        r"PMII_singinit|singleton init program attempted|PMI2?_Init\w{0,12} (?:returned|failed)|not built with support for SLURM's PMI"
        r"|was launched without a PMIx? server|OMPI was not built with SLURM's PMI|No PMIx server was reachable|\bsingletons will be started"),
    tag("container-started", "",
        r"(?:pod/(?P<pod>[\w.-]{1,80})\s.{0,80})?(?:Successfully pulled image|Container image) \"(?P<image>[^\"]{1,200})\"",
        r"(?:pod/(?P<pod>[\w.-]{1,80})\s.{0,80})?Started container [\w.-]{1,80}",
        r"^\s*(?:pod/)?(?P<pod>[\w.-]{1,80})\s+\d{1,3}/\d{1,3}\s+(?:Running|Completed)\s+\d"),
    tag("container-restarts", "",
        r"(?:pod/(?P<pod>[\w.-]{1,80})\s.{0,80})?Back-off restarting failed container|CrashLoopBackOff|failed (?:liveness|startup) probe, will be restarted"),
    # Which collective a rank's traceback went through.
    tag("collective-frame", "context setting",
        r"distributed_c10d\.py\", line \d+, in (?P<op>all_reduce|reduce|all_gather\w*|_?all_gather_base|broadcast\w*|reduce_scatter\w*|all_to_all\w*|gather\w*|scatter\w*|barrier|send|recv)\s*$"),
)
