"""One row per cause: the effect of a restart, and why; `decision` has the logic, `KINDS` its texts."""

from __future__ import annotations

import difflib
import re
from typing import Literal, NamedTuple, cast

from ringup.errors import UsageError

NODE_LOST = "node-lost"
"""A node that did not answer until its lease ended; not in the catalogue."""
Kind = Literal["user", "stop", "confirm", "same", "repeat", "exclude", "setup", "slow"]
KINDS: dict[Kind, str] = {
    "user": "never: the end was requested",
    "stop": "never: it would fail the same way",
    "confirm": "once on the same nodes; the same failure again without progress stops the run",
    "same": "on the same nodes, at most {tries} times in a row without progress",
    "repeat": "on the same nodes; a node that causes it twice without progress is left out",
    "exclude": (
        "without the node that it names; at low confidence only if a second sign names the node, too"
        " (the check before the restart, or an earlier attempt)"
    ),
    "setup": (
        "without the nodes that it names if they are few of three or more, or joined as spares; else once on"
        " the same nodes if the run had worked before; else never"
    ),
    "slow": "on the same nodes: it makes a run slow and does not end it",
}
TRIES = 2
"""Most restarts in a row without progress on unchanged nodes; a row may allow more."""


class Row(NamedTuple):
    kind: Kind
    why: str
    tries: int = TRIES

    @property
    def sentence(self) -> str:
        return f"{KINDS[self.kind].format(tries=self.tries)}. {self.why[:1].upper()}{self.why[1:]}."


_TEXT = """
user: the scheduler or a person decides when the run starts again
    terminal-closed job-cancelled
stop: the script or its command line must change first
    local-rank-argument-rejected launcher-argument-misread hostfile-missing ddp-unused-parameters
    parameter-ready-twice process-group-started-twice nccl-called-wrongly nccl-setting-invalid
    rendezvous-variables-missing
stop: the build of torch must change first
    gpu-architecture-not-built
stop: the way in which the ranks are started must change first
    world-size-disagrees launcher-started-per-task slurm-tasks-mismatch node-rank-duplicate
    rendezvous-ids-differ same-gpu-twice nproc-exceeds-gpus not-enough-slots
    ray-node-address-differs placement-not-possible file-not-shared user-buffers-not-registrable
    sidecar-intercepts-ranks
stop: a full disk stays full until space is freed; a node whose own disk is full is tried once more,
  then left out
    disk-full
stop: a node is left out only after `ringup test` has named it, and wrong numbers are never retried unseen
    all-reduce-wrong
stop: the ranks loaded different models, e.g. from a half-written checkpoint
    model-differs-between-ranks
stop: the lock file must be removed first
    build-lock-left
stop: the cluster must give the pod a node first
    pod-not-scheduled
confirm: data or a half-read file may pass the next time; an import or type error before the first step stops
  at once (an import error on one node alone leaves it out), one of storage or network is tried three times
    rank-raised-exception
confirm: the same line of code fails in the same way
    collective-mismatch uneven-batches-between-ranks rank-busy-while-others-wait communicator-left-over
confirm: memory that had sufficed may suffice again, memory that never did will not
    gpu-out-of-memory oom-killer-ran host-memory-refused
confirm: a leak starts again from zero, a limit that is too low stays too low
    open-files-too-low process-limit-reached peer-mappings-exhausted
same: two ranks met in one file, and a new start orders them again
    shared-file-raced
same 3: the restart takes another port and another run id
    port-in-use stale-rendezvous-state orphan-of-earlier-run
same: the check before the restart finds a node that does not answer and leaves it out
    store-unreachable peers-never-joined init-never-finished world-never-formed ssh-connection-refused
    ssh-timeout ssh-no-route container-restarts nfs-mount-slow
same: the cause itself is not known
    peer-died-first nccl-error-without-detail unnamed-failure
repeat: most links recover; the second failure at one place is a cable or a port
    link-flapped rdma-retry-exceeded rdma-port-not-active rdma-adapter-event peer-unreachable-on-interface
    rdma-peer-unreachable path-mtu-black-hole
repeat: once may be chance or an outside signal; twice on one node is the node
    rank-killed rank-crashed
repeat: once may be the code; the same node missing twice is the node
    rank-fell-behind collective-stalled
repeat: Xid 46 48 62 64 74 79 95 119 120 140 143, 154 with an action, and a fatal SXid are hardware and leave
  the node out at once
    xid-in-kernel-log
exclude: the hardware is broken, and a restart there would fail again
    ecc-uncorrectable gpu-missing nvlink-failed pcie-errors
exclude: the node's GPUs do not work together
    fabric-manager-not-running nvls-setup-failed imex-not-working
repeat: a node that answers again, clean and with the same boot, is used once more
    node-lost
setup: the nodes differ, or the setting is wrong on all of them
    interface-name-missing interface-down gloo-ifname-in-nccl-syntax virtual-interface-chosen
    loopback-interface-chosen link-local-address-chosen same-address-on-two-nodes address-families-differ
    hostname-resolves-to-loopback hostname-unresolvable-from-peer rendezvous-host-not-recognised
    ephemeral-ports-exhausted port-privileged
setup: RDMA or a plug-in is set up differently, or wrongly everywhere
    rdma-device-name-missing rdma-device-set-differs rdma-device-unusable gid-missing-or-wrong
    network-plugin-missing network-plugin-init-failed acs-enabled mixed-link-layers-selected
setup: GPUs are visible, mapped or linked differently, or wrongly everywhere
    cumem-host-unusable gpus-hidden-between-ranks topology-detection-failed device-ordinal-not-visible
    no-gpu-visible
setup: software or its environment differs, or is wrong everywhere
    nccl-versions-differ environment-differs-between-nodes driver-library-mismatch driver-too-old-for-cuda
    nccl-library-too-old two-nccl-libraries network-plugin-too-old python-or-launcher-missing
    ssh-not-passwordless environment-breaks-remote-shell container-not-started job-step-not-launched
setup: a limit of the node or container is too low
    shm-too-small memlock-too-low kernel-cannot-pin-memory
slow: the check rejects a spare that would be slow
    fell-back-to-sockets uverbs-not-accessible gpudirect-module-missing sharp-unavailable ipoib-used-for-data
    transport-differs-between-ranks
"""


def _rows() -> dict[str, Row]:
    """
    The rows of the text above, by the names of causes.

    A row begins with "kind [tries]: why".  Lines indented by two more continue it, lines indented by four
    name causes.
    """
    rows: dict[str, Row] = {}
    head = Row("stop", "")
    for line in _TEXT.strip().splitlines():
        if line.startswith("    "):
            rows |= dict.fromkeys(line.split(), head)
        elif line.startswith("  "):
            head = head._replace(why=f"{head.why} {line.strip()}")
        else:
            words, _, why = line.partition(": ")
            kind, _, tries = words.partition(" ")
            head = Row(cast(Kind, kind), why, int(tries or TRIES))
    return rows


ROWS: dict[str, Row] = _rows()
UNKNOWN = Row("same", "it is tried again")
"""The row of a failure without a cause, or with a cause without a row."""

SIGNS = {
    *("ecc-uncorrectable", "row-remap-pending", "retired-pages-full", "recovery-action-needed"),
    *("nvidia-smi-hangs", "nvlink-errors", "nvlink-inactive", "pcie-errors", "pcie-link-degraded"),
    *("link-flapped", "link-speed-below-peers", "rdma-port-not-active", "rdma-rate-low", "symbol-errors"),
    *("receive-errors", "transport-retries", "interface-errors"),
}
"""The check's warnings before a restart that count as a second sign against a suspected node."""
HARDWARE_XIDS = frozenset({46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143})
"""Xid codes after which NVIDIA's catalogue requires a reset or replacement of the GPU."""
FATAL_CODE = re.compile(r"\bSXid\b.{0,80}: ?\d+, Fatal\b|: ?154\b.{0,80} to 0x\w{1,16} \((?!None\b)")
"""A fault of an NVSwitch that ends every program; Xid 154 if the driver requests a reset or a reboot."""
WRONG_CODE = (
    *("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError", "TypeError"),
    *("UnboundLocalError", "AttributeError", "KeyError", "IndexError", "AssertionError"),
)
"""Exceptions that the same code raises every time; before the first step, one attempt is enough."""
LOCAL_DISK = re.compile(r"No space left on device: '(?:/tmp|/var/tmp|/dev/shm)/")
"""A disk that exists only on its node."""
OF_THE_NODE = re.compile(
    r"(?:\w+\.)*(?:ImportError|ModuleNotFoundError)\b|.{0,200}cannot open shared object file"
)
"""An exception caused by software that is installed differently on one node."""
TRANSIENT = re.compile(
    r"Connection\w{0,30}Error|Connect(?:ion)?Time(?:d ?)?out|Read ?Time(?:d ?)?out|\bTimeoutError"
    r"|[Tt]imed out|ETIMEDOUT|ESTALE|Stale (?:NFS )?file handle|\bEIO\b|Input/output error|Transport endpoint"
    r"|Temporary failure in name resolution|(?:HTTP|[Ss]tatus)\D{0,20}(?:429|5\d\d)\b|\b5\d\d Server Error"
    r"|\b429 (?:Client Error|Too Many)"
)
"""An error of storage, a hub or a network that may disappear within a minute."""
STORAGE_TRIES = 3
SIGNALED = {137: "SIGKILL", 143: "SIGTERM"}
"""Exit codes from signals, not from the script."""


def code_or_cause(option: str, word: str) -> int | str:
    """An exit code (1 to 255) or the name of a cause.  Raises UsageError for other text."""
    word = word.strip()
    if word.isascii() and word.isdecimal() and 1 <= int(word[:4]) <= 255:
        if int(word) in SIGNALED:
            name = SIGNALED[int(word)]
            wrong = f"{option} {word}: {name} ends a rank from outside, so the code says nothing"
            raise UsageError(wrong, hint="name the cause, e.g. rank-killed or oom-killer-ran")
        return int(word)
    if word in ROWS:
        return word
    near = difflib.get_close_matches(word, ROWS, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(near)}?" if near else "`ringup explain` lists the causes"
    raise UsageError(f"{option}: {word[:80]!r} is neither an exit code from 1 to 255 nor a cause", hint=hint)
