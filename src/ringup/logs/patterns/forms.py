"""
The words that identify the form of a line (`logs.forms`), and the prefixes of messages.

No program's own wording: errors, waits, ends and their consequences as any program words them.
"""

from __future__ import annotations

import re

from ringup.logs.patterns.tags import Pattern

ERRNO = (
    r"No space left on device|Permission denied|Operation not permitted|No such (?:file or directory|device)|Input/output error"
    r"|Cannot allocate memory|Resource temporarily unavailable|Connection (?:refused|timed out|reset by peer)|No route to host"
    r"|(?:Network|Host) is unreachable|Address already in use|Cannot assign requested address|Invalid argument|Bad address"
    r"|No data available|Remote I/O error|Too many open files|Disk quota exceeded|Stale file handle|Read-only file system"
    r"|Name or service not known|Temporary failure in name resolution|Function not implemented|Protocol not (?:supported|available)"
    r"|Transport endpoint is not connected|Software caused connection abort|Broken pipe|Not a directory|Exec format error"
    r"|Text file busy|File exists|Device or resource busy|Operation not supported|Socket timed out"
)

FAILING = (
    r"\b(?:fail(?:ed|s|ure)?|cannot|can't|couldn't|could not|unable to|aborted|aborting|refused|denied|not found|no such|invalid"
    r"|unsupported|not supported|undefined symbol|mismatch\w*|corrupt\w*|does(?: not|n't) (?:exist|match|fit|support)|crashed|died|panic(?! handler)"
    r"|insufficient|unreachable|out of memory|not? enough|no available|is not (?:set|valid|divisible|available)|no space left"
    r"|unrecognized|unknown|out of range|exceed(?:s|ed)|missing|unexpected(?:ly)?|broken|is dead)\b"
)
WAIT = (
    r"timed out|times out|timing out|time-?out (?:after|of|expired|exceeded|error|\(|while|waiting)|TimeoutError|watchdog (?:caught|time|got)|detected by watchdog|still waiting|waiting (?:for|on)|been waiting|may be stuck|\b(?:hung|hang(?:ing|s)?|stuck|stall(?:ed|s)?)\b"
    r"|no progress|\bnot (?:yet )?ready\b|No available \w|clients joined|only have [1-9]\d{0,5} participants|(?:no|lost|missed) heartbeat|deadline.exceeded"
)

KERNEL = Pattern(
    "kernel",
    r"NVRM: Xid|Out of memory: Killed process|out of memory: Kill|oom-kill:|\bsegfault at |general protection fault|soft lockup"
    r"|blocked for more than \d+ seconds|OOMKilled|uncorrectable|fallen off the bus|VM_L2_PROTECTION_FAULT_STATUS|I/O error, dev|Kernel panic|health compromised",
)
PROGRAM_XIDS = {13, 31, 43, 45}
"""Codes that a faulty program raises, not faulty hardware (NVIDIA's Xid catalogue)."""
XID = re.compile(r"Xid \([^)]{1,40}\): (\d{1,4})\b")
CAUSED_BY = Pattern("caused_by", r"^(?:Caused by|Original error|Root cause|Reason|Cause)\b.{0,20}?: ?\S")
LIBRARY = Pattern(
    "library",
    r"NCCL WARN \S|\bUCX +(?:ERROR|FATAL) |\bE[A-Z]\d{4}\)?: |non-zero status: \d{1,6} \S|\bNULL value \S|\bnvshmem\w*: .*error"
    r"|\blibfabric:\S*<(?:err|critical)|aborting with error : HSA_|\b(?:ibv|mlx5dv|efadv|fi)_\w+(?:\([^)]*\))? failed|(?:Cuda|HIP) failure '|CUDA error: ",
)
OF_SOURCE = re.compile(r"\w{1,60}\.(?:cpp|cc|cu|c):\d{1,6} \w{1,60}: ")
"""The line and function of a native library's source, as oneCCL and UCX name them."""
GOES_ON = Pattern(
    "goes_on",
    r"^Lmod has detected|queued and waiting for resources|\. {1,3}Trying lib|gdrcopy_\w{1,20}_init failed|not readable \(yet\?\)|Detected insufficient power|\(load will be required after|Could not run slurm task_prolog|^slurmstepd: error: (?:TMPDIR \[|Setting TMPDIR)|\b(?:module|ml): command not found|severity=Corrected\b|: \d{1,6}, Non-fatal\b|\bretry(?:ing)?\b(?! count)|will (?:retry|be retried)|stopping early|early stop|will restart|attempts? left|may (?:be(?! unrelated)|have|cause|lead|not|affect|hang)|\bskip(?:ping|ped)?\b|\bignor(?:e|ed|ing)\b|fall(?:ing|s)? back|disabled|using \w+ instead"
    r"|deprecat|will (?:be removed|fail (?:in|if))|can (?:potentially )?cause|optional|not (?:an|a fatal|(?:a )?warning or(?: an)?) error|is expected|to silence|perf may be"
    r"|attempt(?:ing)? to (?!exit|abort|stop|terminate)|has already been registered|not set, using|defaulting to|going to /tmp|consider |recommend|for better performance|is experimental|taint(?:s|ing) kernel|\btreat(?:ed|ing)? (?:it|them) as|accepting this|otherwise you(?:'ll| will| may) ",
)
HARMLESS = Pattern(
    "harmless",
    r"libibverbs|No device found|Could not find: lib|plugin not|iommu|which can lead to|\bNUMA\b|affinity|Failed to find CUDA library|NCCL_\w+ value"
    r"|Accept failed (?:Resource temporarily|Success)|Could not enable P2P|NCCL_THREADS|User asked for|dlvsym|dlsym|gdrwrap|GDRCOPY|FastSocket|incoming CPU|Maximum retry|hugepages|wrong magic|wrong type|deprecated|NET/OFI (?:Using|Selected)|\bignor(?:ing|ed)\b",
)
"""NCCL's warnings after which it continues."""
PROGRAM = Pattern(
    "program",
    r"^\S{1,160} (?:fatal )?(?:error|fatal) {0,8}: \S|^(?:INTERNAL|UNAVAILABLE|ABORTED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|INVALID_ARGUMENT): \S"
    r"|^(?:[\w./+-]{1,60}: ){1,3}(?:line \d+: (?:[\w./+-]{1,60}: )?)?(?:fatal |critical )?(?:error\b|command not found|cannot |can't |could not |couldn't |failed to |unable to |not found)"
    r"|^(?:[\w./+-]{1,60}: ){1,4}.{0,160}(?:"
    + ERRNO
    + r")|^\[?(?:ERROR|FATAL)(?: ERROR)?\b\]?:? ?\S|^usage error|^(?:[\w./-]{1,60}: )?(?:line \d+: )?\d+: \S+: not found"
    r"|^(?!/usr/)(?:[\w./+-]{1,60}: ){1,3}(?:line )?\d+: \w{1,80}: (?:unbound variable|parameter not set)|^(?:Host key verification failed|A call to \w+ (?:was unable|failed))|\bAssertion .{1,200} failed\b|\bCheck failed: |Task launch for \S+ failed|launch failed|aborted before step|^thread '[^']{1,80}' (?:\(\d{1,10}\) )?panicked at "
    r"|\bINTERNAL ASSERT FAILED at ",
)
NAMES_ERRNO = Pattern(
    "names_errno",
    r"(?:" + ERRNO + r")|\berrno[ =:]*-?\d|\bRC: -?\d|\bgai error\b|\breturncode=[1-9]|ERROR: \S",
)
ENDED = Pattern(
    "ended",
    r"(?:exit(?:ed|s)?(?: with)?|return(?:ed)?|status) ?(?:exit )?(?:code|status)s? ?[=:]?\s*\(?-?[1-9]|\bexitcode\W{1,6}-?[1-9]|Segmentation fault|Bus error|core dumped"
    r"|[Cc]aught signal \d|(?<![,|/\[])(?<![,|/\[] )SIG(?:SEGV|BUS|ABRT|KILL|FPE|ILL|QUIT)\b|sigquit|watchdog timeout \(self\.watchdog_timeout=\d{1,6}(?!.{0,30}soft=True)|\bWEXITSTATUS [1-9]|^\W*Killed\W*$|terminate called|Fatal Python error|signal \d+ \(",
)
FAILED = Pattern("failed", FAILING + r"|\berror\b|\bfatal\b|\bexception\b")
FAILS = Pattern("fails", FAILED.source + r"|\b(?:must (?:not )?be|should be|expected|requires?)\b")
"""Also the words of a demand, which is a failed check or advice."""
WAITS = Pattern("waits", WAIT)
CONSEQUENCE = (
    r"connection closed by (?:remote )?peer|closed by (?:remote )?peer|reset by peer|recv(?:Value|Vector) failed|sendBytes failed|broken ?pipe|another rank"
    r"|ncclRemoteError|remote process exited|Proxy Call to rank \d+ failed|Socket recv failed while polling|(?:received|got) signal:? 15\b|Signal 15\b|SIGTERM"
    r"|store->get\('[^']*'\) got error|keep-alive heartbeat|failed to shutdown the rendezvous|RendezvousConnectionError|watchdog caught collective"
    r"|taking the entire process down|remote (?:worker crash|server shutdown)|failed to send RPC to coordination|num_nodes_waiting|Error encountered progressing operation"
    r"|exitcode\s*: -15|received 15 death signal|-> 6(?: \[|$|\s)|got 0 bytes|Connection was likely closed|EngineDeadError|ActorDiedError|ConnectionResetError|Horovod has been shut down"
)
"""Another end, of any program."""
FOLLOWS = Pattern(
    "follows",
    CONSEQUENCE
    + r"|connection (?:was )?(?:likely )?closed(?! by (?:remote host|\S{1,80} port \d))|recv(?:Value|Vector)|sendBytes|Failed to execute operation|Error encountered progressing|Proxy Call to rank|(?:failed|unable) to (?:shut ?down|dump)"
    r"|Error executing job with|see (?:root cause|the stack trace|above)|root cause above|initialization failed\. See|check the (?:logs|stack trace)|check if there are relevant logs"
    r"|child (?:process )?failed|ChildFailedError|CalledProcessError|Rendezvous\w{0,20}Closed|RayTaskError|ActorDied|ActorUnavailable|EngineDead|WorkerProc|EngineCore failed to start|(?:task|trial|job|actor) failed for (?:task|trial|job|actor)"
    r"|Engine(?:Core)? .{0,20}(?:died|failed)|scheduler is dead|closing signal|signal:? 15\b|(?:exit(?:ed)?|failed|ended) (?:with )?(?:exit |return )?code:? (?:1|2|15|143)\b"
    r"|exitcode\W{1,6}(?:-15|1|2|143)\b|Job step aborted|Terminating (?:StepId|process|remaining)|(?-i:CANCELLED)|Back-off|CrashLoopBackOff|spank: required plugin|spank plugin stack"
    r"|Primary job +terminated|non-?zero exit (?:code|status)|job has been aborted|unhandled (?:system|cuda) error|internal error - please|ncclSystemError|ncclInternalError"
    r"|Test NCCL failure|Test failure|function error: Hccl|file:\d+ -> \d|\.(?:cc|cu):\d{1,5} ?-> ?\d|A worker died|Worker (?:exit|unexpectedly)|Exception raised from|Some \w{2,8} operations have failed|received sigquit|Root Cause \(first|\.py FAILED\s*$|\btask failed\b|connect EPS failed|setup connections failed"
    r"|printing (?:enroot|contents)|(?:^|pyxis: )(?:child|container start)\b.{0,30} failed with error code|couldn't start container|failed to (?:import|start|create) (?:docker |the )?(?:image|container)|launch(?:ed)? failed with|failed to start\.?$|Exited with exit code|\(status: FAILED|\bNo such container: |raised (?:error|exception)|stack trace (?:of|above)|failure detected by watchdog|error has been caught in function"
    r"|mpi_abort|call to MPI_Finalize|(?:ORTE|prterun) was unable to reliably|Command '.{1,300}' returned|failed \(exitcode|Application startup failed|Encountered a bad command exit code|^Error executing method"
    r"|non-zero status: \d{1,6}\s*$|Polled an error|service detected fatal errors|terminated unexpectedly|WatchTasksAsync failed|error polling to propagate|an error from this or another task|Barrier failed because|Shutdown barrier|Exception \(either an error|should dump|heartbeat ?monitor|connection error code|lost connection|Executor failed|worker failed|failed due to worker errors|worker health check failed|^Error in training function:$|Worker exited|returned value error"
    r"|(?:DistBackend|DistStore|DistNetwork|ProcessRaised|ProcessExited|Rendezvous\w{0,40}|Worker\w{0,20})(?:Error|Exception)(?!: The server socket)|Engine core initialization",
)
"""And lines around an end that another line reports."""
OF_A_COMPILER = re.compile(r"CalledProcessError: Command '\[?'?(?:\S{0,60}/)?(?:g\+\+|gcc|nvcc|clang|ninja)")
"""A program that a rank runs; all others in this exception are launchers of ranks."""
NOISE = Pattern(
    "noise",
    r"^\W{0,8}(?:[\w.]{1,40} - )?error(?: (?:logs?|output|messages?|traces?))?[\W\d]{0,20}$"
    r"|^\s*(?:File \"|Additional GRPC error information|:UN(?:AVAILABLE|KNOWN):|\^{1,200}\s*$|~{1,200}\^|(?:[\w.-]{1,63} ){0,2}frame #\d+|at [\w./]+:\d+|\d{1,3} {1,3}/\S+\.so|#\d+ 0x|\*{4,}|-{6,}|={6,})|destroy_process_group\(\) was not called|Exception ignored in"
    r"|(?:Future|Deprecation|User|Runtime|Resource|Syntax)Warning|using GPU \d+ (?:to perform|as device)|CUDA kernel errors might|For debugging consider|Compile with `TORCH_USE_CUDA"
    r"|cuFFT factory|cuBLAS factory|cuDNN factory|computation placer|TF-TRT|ACPI (?:BIOS )?(?:Error|Warning|Exception)|hostname of the client socket cannot|OMP_NUM_THREADS|error_if_nonfinite|error_file\b|: <?N/A>?\s*$|To enable traceback"
    r"|Stack trace of the failed collective not found|potential root causes|number of (?:skipped|nan)|Out of bounds values : 0|#wrong|algbw +busbw|Failed to find nccl\w+ symbol|Could not find: ?lib"
    r"|^[NR]CCL version|no plugin found|^Pods Statuses: .{0,60} / [1-9]\d* Succeeded|exit(?:ed)? (?:with )?(?:code|status):? ?0\b|(?<![<>=] )(?<!gpu )(?<!rank )(?<!node )(?<!device )\b0 (?:errors?|failed|failures)\b|\b0 [a-z]{3,20} (?:are |were )?(?:unexpected|missing|failed|invalid)\b|errors?(?:[=:] ?0|=(?:None|null|nil|false))\b|\bkill: .{0,20}\bNo such process|no errors?\b|(?:no|without) (?:error|exception|failure)s?\b|(?:after|since|of) the (?:last|previous)\b[^.:]{0,30} failure\b|error[_ ]rate|mean_error|max_error|val_error|loss_scale"
    r"|^\[Rank \d{1,7} Error Snippet\]:$|^Last error: {0,4}$|^Caused by: .{0,300}\.py:\d{1,6} in |Traceback \(most recent|during handling of the above|the above exception was|Solution:|this usually is caused by|\blikely\b.{0,40}\bcauses\b|Set the environment variable HYDRA"
    r"|\berrors?[ =:]{1,3}(?:\d+\.\d|\d+e-)|^#|^\W{0,200}$|^ {0,8}\S{1,40}(?: {2,20}\S{1,40}){4}|Check failure stack trace|^PC: @|^\W{0,8}(?:at|@) {2,20}0x"
    r"|\bCould not collect$|\bapport_python_hook\b|^Error in sitecustomize|: I tensorflow/|: [IW] external/|\bsudo: unable to resolve|slurmstepd: error: (?:Unable to create TMPDIR|Setting TMPDIR|\w{1,40}: unable to set CPU affinity)|\bsshd(?:-session)?\[\d+\]: |\bAER: Corrected|\bEDAC .{0,20}\bCE\b|^(?:\S{1,80}: )?(?:ls: cannot access |pkill: |which: no )|\bnvcc: (?:command )?not found|^wandb: (?:WARNING |Network error)|cannot set terminal process group|no job control in this shell|cannot find name for (?:group|user) ID|Inappropriate ioctl for device|^mesg: |^stty: |^tput: No value|\bsetlocale: |Could not chdir to home directory|\[drm\] (?!\*ERROR)"
    r"|\bsystemd-[\w-]{1,40}\[\d+\]: |^E[A-Z]\d{4}: Inner Error!$|^libfabric:\S{1,160}<(?:info|debug|trace)> |\bdisqualif\w{2,4}|\bselect: init of component \S{1,40} returned|^(?:\d{1,4}: )?\S{1,60}: <[A-Z_,-]{2,120}> mtu \d|^\S{1,60} {2,30}UNKNOWN {2}|^\s*--[a-z][\w-]{1,60}(?:=\S{0,80})?\s*$|^\s*\w[\w ]{1,40} {2,40}: Not (?:Found|Active|Supported)\s*$|inotify_add_watch|\b[a-z0-9.-]{1,60}/[a-z0-9.-]{1,60}:No(?:Execute|Schedule)\b|NVRM: (?:nvAssert\w{1,40}|\w{1,60}_[A-Z0-9]{4,8}): |^rm: cannot remove |^mkdir: cannot create directory .{1,300}File exists|\bfatal: (?:not a git repository|detected dubious ownership)|\bgit root error: |\bTo add an exception for |more processes? ha\w{1,2} sent help message|Set MCA parameter|find any relevant network interfaces|RAY_IGNORE_UNHANDLED|Ray process with a|\bNCCL_ASYNC_ERROR_HANDLING\b"
    r"|^ {0,8}[\w ()/-]{1,60}\.{5}(?!.{0,80}\b(?:fail|error))|(?: {2,40}\d[\d.]{0,12}(?:%|[num]?s|[KMG]?b)?(?= )){3}",
)
ENDS_OPEN = re.compile(
    r"(?:error|fail\w{0,12}|reason|exception|detail|message|because)\b[^:]{0,40}:\s{0,8}$|panicked at \S{1,160}:$",
    re.IGNORECASE,
)
SPECIFIC = (
    Pattern(
        "specific",
        r"\b(?:"
        + ERRNO
        + r")|errno|(?-i:\bE(?!RROR\b)[A-Z]{4,}\b)|undefined symbol|status=|\bRC: -|\bsyndrome\b",
    ),
    Pattern(
        "specific",
        r"(?<![\w.])(?:/[\w.+@-]{1,60}){2,12}|'[^']{2,120}'|\"[^\"]{2,120}\"|\bdev(?:ice)? [\w:.]{2,40}|`[^`]{2,120}`",
    ),
    Pattern("specific", r"\b\d{1,3}(?:\.\d{1,3}){3}\b|<\d{2,5}>|\bport\W{1,3}\d{2,5}|::[0-9a-f]{2,4}"),
    Pattern("specific", r"(?<!-)--[a-z][\w-]{2,40}|\b[A-Z]{2,12}(?:_[A-Z0-9]{2,20}){1,5}\b"),
    Pattern("specific", r"\b\d{2,12}\b(?: ?[kMGT]i?B)?"),
)
SEVERITY = re.compile(
    r"(?:\b|(?<=\|CCL_))(?P<word>FATAL|CRITICAL|ERROR|SEVERE|WARN(?:ING)?|INFO|NOTICE|DEBUG|TRACE)\b|(?:^|[\[\s(|:])(?P<letter>[EWIF])(?=\d{3,4} \d\d:)"
    r"|\d[,.]\d{2,9} (?P<ray>[EWIF]) \d|: (?P<xla>[EWIF]) [\w/]{4,}|\[(?P<torch>[EWIF]) (?=[\w/]{1,80}\.\w{1,3}:\d)|NeMo (?P<nemo>[EWID]) |(?P<low>\berror\b|\bwarning\b)(?=: |\])|(?P<title>\bWarning)(?: - |: )|^\s*(?:\d{1,4}[smhd]\S{0,6}\s{1,8})?(?:\d{1,4}[smhd]\s{1,8})?(?P<event>Warning|Normal)\s{1,8}[A-Z][a-z]",
)
WRAPPING = re.compile(
    r"\s{0,8}(?:(?:slurmstepd|srun|slurmd|sbatch)(?:-[\w.-]{1,63})?: (?:error: )?(?=pyxis:|\S{1,80}: tasks? )|pyxis: {1,8}(?=\S)|\[(?:INFO|WARN(?:ING)?|ERROR|DEBUG|FATAL)\]:? |##\[(?:error|warning)\](?=\S)"
    r"|(?:INFO|WARNING|ERROR|CRITICAL|FATAL|DEBUG|WARN):? {1,8}(?:\d{2,4}-\d\d-\d\d[T ])?[\d:.,]{0,18}Z?(?: {1,3}(?=\S)|$)|[\w.-]{2,60} (?=(?:DEBUG|INFO|WARNING|ERROR) {2,8}\S)|(?:<[a-z]{0,8}> {1,8})?\[[\dTZ:., +-]{10,40}\] [0-9a-f]{8} \|\| {1,2}|\[[\w./-]{1,80}\.(?:py|cc|cpp|cu|h):\d{1,6}(?::\w{1,60})?\]:? |[\w./-]{1,80}\.(?:py|cc|cpp|cu):\d{1,6} - "
    r"|\[[a-z][\w.]{1,60}: [\w./-]{1,80}\] |\[\d{4}-\d\d-\d\d[T ][\d:.,]{5,18}(?: [A-Z]{2}\d{1,4}){1,4}\] |\[(?:[\w-]{1,40}\d)\] "
    r"|[\w.-]{1,80}:\d{1,10}:\d{1,10} (?:\[-?\d{1,4}\] )?(?=.{0,160}(?:NCCL|NET/))|\[\d{10}\.\d{1,9}\] |(?:\d{1,10}:){0,2}\d{0,10} ?\[-?\d{1,4}\] (?=.{0,160}NCCL )|\[[\w.-]{1,80}:\d{1,10} ?:\d{1,6}\] {1,16}"
    r"|(?:[\w./-]{1,60}\.(?:cc|cpp|cu|c|h):\d{1,6} {1,3})(?=NCCL |UCX )|(?:\[Rank \d{1,7}\]|\[PG [^\]]{1,80}\]) {0,2}"
    r"|\[?[EWIF]\d{3,4} [\d:.]{8,18} {1,12}(?:\d{1,10} {1,4})?[\w/.-]{1,120}:\d{1,6}\]:? |\[\d{12,20}\] |\(\w{1,60}(?:\[rank=\d{1,6}\])?(?: \w{1,20}=[\w.:-]{1,60},?){1,4}\) {0,2}"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]{2,10}: [EWIF] [\w/.]{1,160}:\d{1,6}\] |\d{2,4}[-/]\d\d(?:[-/]\d\d)? [\d:.,]{5,15} |\d{4}-\d\d-\d\dT[\d:.]{8,20}Z? {1,2}"
    r"|(?:\( {0,8}\d{1,10}\)| \d{1,10}:\[\d{1,6}\]) \|CCL_[A-Z]{4,5}\| |(?:[A-Z]{2}\d{1,4} ?){1,4}\] {1,2}|\d{4}-\d\d-\d\d-\d\d:\d\d:[\d.]{2,12} |\[PID: ?\d{1,9}\] |(?:std(?:out|err) [FP] )|\[\+?\d{1,9}(?:\.\d{1,9})?s?\] )"
)

# fmt: off
MEANINGS = (
    (Pattern("meaning", r"closing signal"), "the launcher ends its other workers: one of them failed first, above this line or on another node"),
    (Pattern("meaning", r"no space left|quota exceeded"), "a file system, /dev/shm or a quota is full: `df -h`, `df -i` and `df -h /dev/shm` on that host"),
    (Pattern("meaning", r"permission denied|not permitted|unauthorized|forbidden"), "the process may not do that: compare user, container privileges and file modes with a node where it works"),
    (Pattern("meaning", r"cannot open shared object"), "that library is not installed there, or LD_LIBRARY_PATH does not lead to it: `ldconfig -p`"),
    (Pattern("meaning", r"undefined symbol|version `"), "two versions of a library are mixed: compare LD_LIBRARY_PATH and the installed versions with a node where it works"),
    (Pattern("meaning", r"no such file|not found|does(?: not|n't) exist"), "a file or command is missing on that host or in that container: compare with a node where it is there"),
    (Pattern("meaning", r"read-only file"), "the file system is mounted read-only there, or became so after an error of its disk: `findmnt -T PATH`, `dmesg -T`"),
    (Pattern("meaning", r"input/output error|remote i/o|stale file"), "storage or a device failed below the program: read the kernel log of that host (`dmesg -T`)"),
    (Pattern("meaning", r"connection refused"), "nothing listens at that address and port: check that the server runs, and on which address"),
    (Pattern("meaning", r"timed out|times out|timeout|deadline|no route|unreachable"), "the other side did not answer in time: read its log around the same time, then test the path between the two hosts"),
    (Pattern("meaning", r"not known|name resolution|could not resolve|gai error"), "a host name does not resolve there: `getent hosts NAME` on that host"),
    (Pattern("meaning", r"address already in use|errno: 98"), "the port is taken, or no free port is left: `ss -ltnp` and `ss -s` on that host"),
    (Pattern("meaning", r"cannot allocate|out of memory|\boom\b"), "memory ran out, or the limit on locked memory is too low: `free -g`, `ulimit -l`, the kernel log"),
    (Pattern("meaning", r"invalid argument|bad address|not supported|not implemented"), "a library, driver or kernel refuses the call: compare their versions with a node or image where it works"),
    (Pattern("meaning", r"no data available|no such device"), "a device, or an entry of its tables, is not visible to the process: `ibv_devinfo`, `show_gids`, `ls /dev/infiniband` inside the container"),
    (Pattern("meaning", r"segmentation|signal 11|sigsegv|bus error|core dumped"), "native code crashed: the backtrace below the line names the library"),
    (Pattern("meaning", r"cuda|hip failure|cudnn|cublas"), "a CUDA call failed: run with CUDA_LAUNCH_BLOCKING=1, and read the kernel log of that host for Xid lines"),
)
"""General meaning of an error, of any program, and where to look next."""
FIXES = (
    (Pattern("fix", r"^EOFError: EOF when reading a line"), "a rank has no terminal for `input()`: pass the answer as an argument of the script"),
    (Pattern("fix", r"^GatedRepoError: |^OSError: You are trying to access a gated repo"), "ask for access on the model's page; then `hf auth login` on that node, or HF_TOKEN in the job"),
    (Pattern("fix", r"^BrokenPipeError: .Errno 32. Broken pipe"), "the program that reads its output ended first (`| head`, `tee`, a terminal): write into a file"),
    (Pattern("fix", r"^(?:HfHub)?HTTPError: 429 "), "the hub refuses that many requests: `hf download` once, then HF_HUB_OFFLINE=1 for all ranks"),
    (Pattern("fix", r"^OSError: We couldn't connect to |^LocalEntryNotFoundError: "), "this node does not reach the hub: `hf download` on one that does, into an HF_HOME that all nodes share; then HF_HUB_OFFLINE=1"),
    (Pattern("fix", r"undefined symbol: _ZNK?(?:3c10|2at|5torch)\d"), "this package was built for another torch: install or build it for the installed one"),
    # Megatron, vLLM, verl, torchtitan, torch's DeviceMesh and accelerate.
    (Pattern("fix", r"world[_ ]size.{0,30}(?:divisible by|equal to .{0,40}parallel)|parallel dims: |Mesh should not be bigger|(?:divisible by|multiple of).{0,60}(?:parallel|micro|tensor|pipeline)|match num_processes \(\d|multiplied should equal the world"),
     "parallel sizes whose product divides the ranks; `ringup explain parallel-sizes-do-not-divide`"),
)
"""The fix of exceptions that name what is missing, by words of Python, huggingface_hub and the linker."""
WRAPPERS = re.compile(r"(?i)(?:^|\.)(?:ChildFailedError|DistBackendError|DistError|DistStoreError|DistNetworkError|CalledProcessError|ActorDiedError|RayActorError|SIGTERMException|RayTaskError\S{0,99}|ProcessRaisedException|ProcessExitedException|Rendezvous\w{0,99}|SystemExit|KeyboardInterrupt|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|EOFError|(?:Base)?ExceptionGroup|SignalException|EngineDeadError|WorkerCrashedError|KilledWorker|TimeoutExpired|CancelledError|RemoteError|XlaRuntimeError|EngineCore\w{0,99}|WorkerGroupError|TrainingFailedError|NodeDiedError|GeneratorExit|BackendCompilerFailed)$")
"""Exceptions that only carry another failure: the wrapped one counts."""
EITHER_WAY = r"(?i)(?:common|likely|possible|potential) (?:root )?(?:causes|reasons)|\(\d\) the (?:process|worker) |may have been (?:killed|terminated)"
"""Sentences that list possible causes (Ray prints one for every dead worker): they prove nothing."""
ONLY_NAMED = r"(?:avoid|unsafe|prevent|may|might|can|could|to) .{0,60}(?:SIG|[Ss]egfault|[Ss]egmentation)"
"""A signal that somebody else's process got, or that is to be avoided."""
OF_A_HANDLER = r"pyxis:|^(?!.{0,300}: line \d{1,6}: {1,4}\d{1,10} [A-Z]).*?(?:\bhandlers?\b(?! called)|\b(?:un)?regist|\binstall|\bignor|\btrap(?:s|ping)\b|\bmask)"
"""Sentences on the effect of a signal that may come: none has; and pyxis' log of a container's start. A shell prints the command of the process that ended: its words are none of these."""
OF_A_HANDLER_CALLED = re.compile(r"(?i)caught signal|\*{3}|fatal python error|signal:? ?(?:\d|\(|seg|bus)|\breceived|segfault (?:at|encountered)|general protection|loader|corrupt|malloc\(|smashing|: {1,4}\d+ (?:segm|bus|ill)|died|exit")
"""How those print it that saw the signal: handlers, shells that name the process, the kernel, launchers."""
OF_AN_IMPORT = re.compile(r"^cannot import name .{1,200} \((?P<other>/[^()]{1,400}\.py)\)$|partially initialized module|consider renaming '(?P<file>[^']{1,400}\.py)'|^module '(?P<module>\w{1,40})' has no attribute '\w+'$")
"""Python names the file from which it took a name in vain; since 3.13 it also says what to rename."""
WAITED_IN_VAIN = re.compile(r"(?i)within the timeout|failed to (?:start|become ready) (?:with)?in \d|nodes to be ready|did not receive .{1,60} within \d|function error: Hccl|error code is (?:107020|507046)\b")
"""Of an exception by which a program reports that it waited in vain."""
REFUSES_ARGUMENTS = re.compile(r": error: (?:unrecognized arguments|the following arguments are required|argument |invalid choice)|^Error: (?:No such option|Missing (?:option|argument)|Invalid value for|Got unexpected extra)")
"""Of Python's argparse and of click, which exit with 2."""
# fmt: on
