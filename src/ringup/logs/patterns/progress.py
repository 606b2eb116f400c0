"""How programs went on and ended: a line taken back, a restart, the end of their work, their last error."""

from __future__ import annotations

from ringup.logs.patterns.tags import tag

# fmt: off
TAGS = (
    # XLA's rendezvous, NFS clients, and who counts tries.
    tag("retracted", "context",
        r"Thread is unstuck|(?:was|were|is) (?:likely )?(?:a )?false[- ](?:positive|alarm)|[Ss]uccessfully reconnected"
        r"|(?:NFS|nfs): server \S+ OK|Connection restored to \S+ \(at |(?:succeeded|successful) (?:after|on) (?:\w+ ){0,3}(?:retry|retries|attempts?)\b"),
    # torch's agent, when it restarts all its ranks.
    tag("restarted", "context", r"attempts? left; will restart worker group|Restarting worker group"),
    # Lightning, transformers, torch's agent, DeepSpeed's launcher, Megatron, nccl-tests, NCCL's own destructor, servers.
    tag("finished", "context",
        r"Trainer\.fit` stopped: `max_\w+=|'train_runtime': '?[\d.]+|worker group successfully finished"
        r'|"key": "run_stop", .{0,300}"status": "success"'  # MLPerf
        r"|Process \d+ exits successfully|after training is done\]|# Avg bus bandwidth|- Destroy COMPLETE"
        r"|(?<!tokenizer )(?:training|train(?:er)?|finetuning|fine-tuning|pretraining|benchmark|(?P<eval>evaluation))[:.,]* (?:(?!\b(?:not|before|until|never|stopped|epochs?|steps?|data|tokenizer|tests?)\b)[^|\]]){0,40}(?<!could be )(?:finished|completed?|done)\b"
        r"|\b(?:Finished|Completed) (?:training|finetuning|fine-tuning|benchmark|all epochs)\b(?! (?:of |for |the |on )*(?:epoch|step|batch|stage|fold|tokenizer|BPE))"
        r"|\b(?:epoch|step|iter\w{0,5}) (?P<n>\d{1,9})(?:/| of )(?P<of>\d{1,9}) (?:done|finished|completed?)\b|\b(?P<n2>\d{1,9})(?:/| of )(?P<of2>\d{1,9}) (?:epochs|steps) (?:done|finished|completed?)\b",
        r"\b(?:job|run|attempt|script)\b.{0,40} (?:finished|completed|succeeded|ended|exited)\b.{0,20}(?:exit )?(?:code|status)[ :=]{1,2}0\b",
        r"^Result\(.{0,400}\berror=None\b",  # of Ray Train and Tune
        # torch's agent waits there once its own ranks have succeeded
        r"Error waiting on exit barrier",
        keep=16),
    # The title of a traceback that the program logs and goes on after; errors that say so themselves.
    tag("made-do", "context setting",
        r"\bretry(?! count|_)|skipping|skipped|falling back|fall back|attempting to recover|recovering|optional"
        r"|(?<!required but )not installed|ignor(?:ed|ing)|could not import|write error: Broken pipe"
        r"|trying (?:the )?(?:next|another)|using (?:port )?\d{2,5} instead|already in use, using"
        r"|(?<!not )as expected\b|(?<!not )\bcontinuing\b|Error waiting on exit barrier"
        r"|(?:reducing|halving|trying) (?:the |a smaller )?batch|\(caught\b|fail\w{0,4}\b.{0,80}, trying \w"
        # uvicorn: one request failed, the server continues
        r"|Exception in ASGI application",
        keep=0),
    # Templates of Alpaca, ChatML, Llama 3 and Zephyr: below it is text that a model wrote, up to its end.
    tag("reply-began", "context setting",
        r"^#{2,3} ?(?:Response|Assistant|Answer|Output)\b.{0,20}$|<\|im_start\|>assistant|<\|(?:start_header_id\|>)?assistant(?:\|>|<\|end)", keep=0),
    tag("tests-passed", "context",
        r"^=* ?\d+ passed(?:, \d+ (?:skipped|xfailed|xpassed|deselected|warnings?))* in [\d.:]+",
        r"\b100% tests passed, 0 tests failed|^Ran \d+ tests? in [\d.]+s",
        # of one test: GoogleTest, pytest -v
        r"^\[ {7}OK \] \S|(?:^|::\S{1,160} )PASSED {1,160}\[ {0,2}\d{1,3}%\]", keep=400),
    tag("tests-began", "context", r"^=+ test session starts =+|^\[=+\] Running \d+ tests? from |^Test project /|^collected \d+ items?\b|^\s+Start +\d+: "),
    # A shell's trace, and the banners of a job script.
    tag("stage-began", "context setting",
        r"^\++ (?:\S{1,100}/)?(?:torchrun|python[\d.]*|srun|mpirun|mpiexec|deepspeed|accelerate|horovodrun|bash|sh)\s",
        r"^(?:[=#*-]{2,40} ?)(?i:starting|start of|begin|stage|step|phase|part)\b.{0,80}$",
        r"^[=#*-]{2,40} ?(?:array )?(?P<job>task|job|seed|fold|experiment|config)\W{1,3}(?P<n>\d{1,6})\b.{0,80}$", keep=50),
    tag("tests-failed", "context",
        r"^FAILED \((?:failures|errors)=\d", r"^\[ {2}FAILED {2}\] \S|(?:^|::\S{1,160} )(?:FAILED|ERROR) {1,160}\[ {0,2}\d{1,3}%\]", keep=400),
    tag("p2p-off", "context", r"P2P is disabled between (?:NVLINK )?connected GPUs|Could not enable P2P between dev"),
    # torch prints NCCL's last WARN below it, on a line of its own, which the scanner reads.
    tag("last-error", "context", r"^Last error:\s*(?P<text>.*)$"),
    tag("served", "context", r"(?P<began>Application startup complete)|\bHTTP/1\.[01]\"? 200\b|throughput(?: \(token/s\))?: [1-9]", keep=2),
    tag("request-refused", "context", r"\"POST \S+ HTTP/1\.[01]\"? 4\d\d\b", keep=200),
    tag("saved", "context",
        r"(?:checkpoint|model|weights|state) (?:successfully )?saved (?:to|in|at)\b|successfully saved checkpoint"
        r"|(?:Model|Optimizer) (?:weights|state) saved in|[Ss]aved (?:the )?(?:checkpoint|model|weights) (?:to|in|at)\b",
        keep=2),
    # The program around a command, or kubectl, about the end of that command, whatever its output above says.
    # Open MPI's show_help (opal/util/show_help.c) frames each of its texts by such lines.
    tag("ruled-off", "context", r"^----------------(?:-{58})\s*$", keep=64),
    tag("command-failed", "context",
        r"ERROR conda\.cli\.main_run:execute\(\d+\): `conda run .{1,2000}` failed|^make(?:\[\d+\])?: \*\*\* \[.{1,200}\] (?:Error [1-9]|Killed|Aborted|Segmentation|Terminated|Interrupt)"
        r"|\bProcess completed with exit code [1-9]|^(?:ERROR: )?Job failed(?::| \()|(?:^|\d\d:\d\d:\d\d {1,2})Finished: (?:FAILURE|ABORTED)\s*$|\bscript returned exit code [1-9]"
        r"|(?:Bash|PowerShell|Cmd\.exe) exited with code '[1-9]|^error: Recipe `.{1,80}` failed .{0,40}with exit code [1-9]|\bBackoffLimitExceeded\b|Error creating: pods .{1,100} is forbidden",
        r"\bNormal termination \(return value [1-9]|\bAbnormal termination \(signal \d|^\d[\w.+]{0,40} .{0,160} (?:FAILED|NODE_FAIL|BOOT_FAIL) +\d{1,3}:\d{1,3}\s*$",
        r"^\s*(?:[a-z][a-z0-9-]{0,62} +)?(?:pod/)?(?P<pod>[a-z0-9][\w.-]{0,200}?)(?P<one>-[a-z0-9]{5})? {1,60}\d{1,3}/\d{1,3} {1,20}"
        r"(?:(?:Init:)?(?:\w{0,30}Error|OOMKilled|ExitCode:[1-9]\d*|Signal:\d+|ContainerCannotRun)|Init:CrashLoopBackOff|ContainerStatusUnknown|Evicted|DeadlineExceeded|NodeLost|NodeShutdown|Failed) {1,20}\d"),
    # Words of failing and waiting: a line that contains one is read; its form gives its meaning (`logs.forms`).
    tag("scare", "context",
        r"error|fail|fatal|exception|warn|cannot|can't|couldn't|could not|unable|abort|refused|denied|timed out|timed-out|timeout|times out|timing out|not found"
        r"|no such|invalid|killed|segfault|segmentation|signal|panic|xid|lockup|exit code|exitcode|exited|exit status|zero status|status=|status:|status code|died"
        r"|is dead|crash|stuck|hang|hung|stall|no progress|waiting|wait for|mismatch|unsupported|not support|unreachable|no space|out of memory|insufficient"
        r"|undefined|unbound var|missing|assert|null value|unexpected|corrupt|closed|reset by|no available|broken|no route|exceeded|not enough|watchdog|heartbeat|too old"
        r"|too many|too small|too large|too few|unknown|requires|required|should be|must be|verification|sigquit|not expected|caught|oomkill|caused by|retry"
        r"|not allowed|forbidden|unauthorized|expired|in use|not known|cancelled|bus error|core dumped|no data|remote i/o|not divisible|not available|not set"
        r"|not match|not ready|not valid|blocked for|protection fault|uncorrectable|compromised|does not|doesn't|no quorum|wexitstatus|ei00|ej00|ee99|ez99",
        keep=0),
)
