"""What NCCL and RCCL say when something fails."""

from __future__ import annotations

from ringup.logs.wordings import ADDRESS, ERRNO, say

FAULTS = (
    # Interfaces.
    say(
        "no-socket-interface",
        r"no socket interface found|NET/Socket ?: no interface found|NET/IB ?: No IP interface found"
        r"|no device found matching \S*, verify NCCL_OOB_NET_IFNAME|no device found matching NCCL_OOB_NET_IFNAME"
        r"|no device found after excluding",
        "interface found",
        "no device found matching",
        "no device found after",
    ),
    say(
        # Only asked for with NCCL_COMM_ID, whose address is looked for among this host's networks.
        "no-common-subnet",
        r"No interface found in the same subnet as remote address "
        + ADDRESS
        + "|No usable listening interface found",
        "interface found",
    ),
    say("address-family", r"family (?P<family>\d+) is neither AF_INET", "is neither af_inet"),
    say(
        "no-address",
        r"(?:WARN|socket\.(?:h|cc):\d+).{0,20}Socket creation failed ?: Address family not supported",
        "socket creation failed",
    ),
    say(
        "nccl-connect",
        r"[Cc]onnect to " + ADDRESS + r" (?:failed ?:|returned|failed with error) ?(?:\d+ ?\()?" + ERRNO,
        "connect to ",
    ),
    say(
        "nccl-connect",
        r"btl_tcp\S*.{0,40}connect\(\) to (?P<address>[0-9a-fA-F.:]+) failed: " + ERRNO,
        "btl_tcp",
    ),
    say(
        "nccl-connect",
        r"connect\(fd=\d+, (?:\S+ )?dest_addr=(?P<address>[0-9a-fA-F.:]+):(?P<port>\d+)\) failed: " + ERRNO,
        "dest_addr=",
    ),
    say(
        "nccl-connect",
        r"Message:\s+connect\(\) to (?P<address>[0-9.]+):(?P<port>\d+) failed",
        "connect() to",
    ),
    say(
        # An open connection to a host that went off, or whose path is lost.
        "nccl-connect",
        r"Call to (?:recv|send)\w* (?:from|to) "
        + ADDRESS
        + r" failed ?: (?P<reason>Connection timed out|No route to host"
        r"|(?:Network|Host) is unreachable)",
        "call to ",
    ),
    say("nccl-connect", r"Call to connect (?:failed|timeout|returned) ?:? ?" + ERRNO, "call to connect"),
    say("nccl-connect", r"connect returned " + ERRNO + r", (?:retrying|exceeded)", "connect returned"),
    say(
        "nccl-connect",
        r"socket\w*Connect\w*:? (?:exceeded (?:error )?(?:retries|timeouts)|poll\(\) failed"
        r"|poll\(\) returned \d+, no POLLOUT)|exceeded error retry count",
        "exceeded ",
        "poll() failed",
        "no pollout",
    ),
    say(
        "nccl-bind",
        r"(?:Call to bind|bind) failed ?: (?P<reason>Cannot assign requested address|Permission denied|Invalid argument)",
        "bind failed",
    ),
    # Bootstrap.
    say(
        "rank-checked-in",
        r"rank (?P<rank>\d+) of (?P<nranks>\d+) ranks has already checked in",
        "already checked in",
    ),
    say("root-count", r"mismatch in rank count from procs (?P<a>\d+) : (?P<b>\d+)", "mismatch in rank count"),
    say(
        "root-info",
        r"mismatch in info from procs, nranks (?P<a>\d+) vs (?P<b>\d+)(?:, nroots (?P<roots_a>-?\d+) vs (?P<roots_b>-?\d+))?",
        "mismatch in info from procs",
    ),
    say("invalid-rank", r"Invalid rank requested ?: (?P<rank>\d+)/(?P<nranks>\d+)", "invalid rank requested"),
    say(
        "bootstrap-truncated",
        r"Message truncated ?: received (?P<got>[\d,]+) bytes instead of (?P<want>[\d,]+)",
        "message truncated",
    ),
    say(
        "data-truncated",
        r"(?:message truncated ?: )?receiving (?P<got>\d+) bytes instead of (?P<want>\d+)",
        "receiving ",
    ),
    say("version-mismatch", r"Mismatched NCCL version detected", "mismatched nccl version"),
    say(
        "size-mismatch",
        r"collective mismatch error,? ?local size (?P<a>\d+) remote (?:size )?(?P<b>\d+)",
        "collective mismatch error",
    ),
    say("size-mismatch", r"posted incorrect receive info", "posted incorrect receive info"),
    say(
        "mismatched-collective",
        r"Mismatched collective detected|may be caused by a collective mismatch around rank",
        "mismatched collective",
        "collective mismatch around",
    ),
    # RDMA.
    say("ib-open-failed", r"Unable to open device (?P<device>[\w.]+)", "unable to open device"),
    say(
        "ib-open-failed",
        r"ibv_open_device failed|ibv_get_device_list.{0,40}(?:Permission denied|failed)|/dev/infiniband\S* ?:? ?(?:Permission denied|No such file)",
        "ibv_open_device",
        "ibv_get_device_list",
        "/dev/infiniband",
    ),
    say(
        "wc-error",
        r"Got completion(?: from peer(?: (?P<peer>\S+?)(?:<\d+>)?)?)? with (?:error |status=)(?:(?P<name>IBV_WC_\w+)\()?(?P<status>\d+)"
        r".*?vendor[ _]err[ =](?P<vendor>\d+)(?:.*? hca (?P<hca>\S+))?",
        "got completion",
    ),
    say(
        "wc-error",
        r"Got completion(?: from peer(?: (?P<peer>\S+?)(?:<\d+>)?)?)? with (?:error |status=)(?:(?P<name>IBV_WC_\w+)\()?(?P<status>\d+)(?P<short>)",
        "got completion",
    ),
    say("wc-error", r"(?P<name>IBV_WC_\w+_ERR)\b", "ibv_wc_"),
    say("mlx5-dump", r"mlx5: \S+: got completion with error", "got completion with error"),
    say("async-event", r"Got async (?:error |fatal )?event ?: (?P<event>[^(\n]+)", "got async"),
    say(
        "async-event", r"async fatal event(?: on \w+.*?\))?(?: .*)?: (?P<event>[^:\n]+)$", "async fatal event"
    ),
    say("async-event", r"(?P<event>GID table change)d?\b", "gid table change"),
    say(
        "async-event",
        r"mlx[45]_core \S+.{0,60}(?P<event>device's health compromised|firmware internal error|internal error detected)",
        "mlx5_core",
        "mlx4_core",
    ),
    say("async-event", r"Got non-fatal async event: (?P<event>[^(\n]+)", "non-fatal async event"),
    say(
        "ib-port-down",
        r"mlx5_core \S+.*(?:Link down|Port \d+ down)|NIC Link is Down",
        "link down",
        "link is down",
        "port ",
    ),
    say(
        "modify-qp",
        r"ibv_modify_qp failed with (?:error )?(?:(?P<errno>\d+) )?(?P<reason>[A-Z][A-Za-z ]+?)(?: errno \d+)?\s*(?:[,.]|$)(?:.*?on dev (?P<device>[\w:]+))?",
        "ibv_modify_qp failed",
    ),
    say(
        "modify-qp",
        r"[Ff]ailed to modify QP (?:\S+ )?to \w+[:,.] (?P<reason>[A-Z][A-Za-z ]+)",
        "failed to modify qp",
    ),
    say("modify-qp", r"ibv_modify_qp failed", "ibv_modify_qp failed"),
    say("gid-link-local", r"\bqpn \d+ mtu \d+ .{0,120}\bGID \d+ \(80FE/", "(80fe/"),
    say("query-gid", r"ibv_query_gid\w* failed", "ibv_query_gid"),
    say(
        "ib-no-memory",
        r"(?:ibv_reg_mr\w*|ibv_create_cq|ibv_create_qp|ibv_alloc_pd|ibv_reg_dmabuf_mr|mlx5dv_\w+|efadv_\w+|fi_mr_reg\w*)(?:\([^)]*\))? failed"
        r"(?:(?: with error|:)? ?(?P<reason>Cannot allocate memory|Resource temporarily unavailable))?",
        "ibv_",
        "mlx5dv_",
        "fi_mr_reg",
        "efadv_",
    ),
    say(
        "ib-no-memory",
        r"(?:Unable to create (?:extended )?(?:CQ|QP)|failed to (?:register|reg)\S* m(?:emory|r)).{0,80}(?P<reason>Cannot allocate memory)",
        "cannot allocate memory",
    ),
    say(
        "memlock-said",
        r"max(?:imum)? locked memory|ulimit -l|RLIMIT_MEMLOCK|memlock (?:limit|soft)|locked memory limit",
        "locked memory",
        "ulimit -l",
        "rlimit_memlock",
        "memlock",
    ),
    say(
        "link-layer",
        r"Can't (?:merge|connect) net devices with different link_layer|different link_layer properties",
        "link_layer",
    ),
    say(
        "nic-count",
        r"mixed local Net device counts|requires NIC \S+ but that NIC is not available|NCCL_IGNORE_NET_MISMATCH|[Nn]et(?:work)? devices? mismatch",
        "net device counts",
        "that nic is not available",
        "ignore_net_mismatch",
        "mismatch",
    ),
    say(
        "net-not-found",
        r"(?:Error: )?network (?P<net>\w[\w ]*?) not found|Failed to initialize any NET plugin",
        "not found",
        "any net plugin",
    ),
    say(
        "plugin-init-failed",
        r"aws-ofi-nccl initialization failed|NET/OFI Initializing plugin failed|Couldn't (?:open|enable|create|initialize) (?:an? )?(?:CQ|AV|EP|domain|fabric|endpoint|completion queue)"
        r"|Couldn't find any optimal provider|find_ofi_provider|OFI NCCL failure|Failed to initialize NET plugin (?P<plugin>\w+)"
        r"|NET/OFI .{0,60}(?:failed to initialize|failed to find)|[Ff]ailed to (?:init|load)\w* (?:external )?(?:network|net) plugin|(?:uverbs|EFA) .{0,30}not found",
        "aws-ofi-nccl",
        "net/ofi",
        "initialize net plugin",
        "ofi nccl",
        "net plugin",
        "network plugin",
        "couldn't ",
        "find_ofi_provider",
    ),
    say("ofi-request", r"NET/OFI (?:Request|Operation\S*).{0,40}completed with error", "net/ofi"),
    say(
        "sharp-off",
        r"Cannot create SHARP job|Streaming Tree lock failed|Cannot initialize CollNet|SHARP (?:coll|group|comm)\w* (?:create|init).{0,40}fail|sharp.{0,40}(?:failed to|unable to) (?:connect|init)|Failed to lock SAT tree|disabling CollNet|unable to connect to Aggregation Manager|No sharp",
        "sharp",
        "collnet",
        "streaming tree",
        "sat tree",
        "aggregation manager",
    ),
    # Topology and settings.
    say(
        "topology-broken",
        r"Attribute \S+ of node \S+ not found|XML (?:Import|Export) Channel ?: \w+ \S+ not found|XML (?:Topology|Graph) has wrong version"
        r"|XML Parse(?: error)? ?: |XML Mismatch ?:|Could not open XML (?:graph|topology) file|Could not find (?:any )?(?:local path from gpu|GPU (?:close|with rank)|NET with id|net id|gpu rank|CPU|local GPU|id |node of type|intermediate GPU)"
        r"|WARN Could not find real path of(?! \S+ \(/sys/class/infiniband)|could not find CPU close to GPU|Failed to find reverse path|No path computed to go|Add NVLink error|Add PCI Link error|could not find CPU numa"
        r"|too many (?:XML|Topo|nodes)|XML parser is limited|tried to create too many nodes|no transport found|Error : ring \d+ does not|getXmlFromCpu|ncclTopo\w+ ?:? (?:could not|parent is NULL|system node)|Could not find rev(?:erse)? link",
        "attribute ",
        "xml ",
        "could not find",
        "reverse path",
        "path computed",
        "add nvlink",
        "add pci",
        "too many",
        "no transport found",
        "ncclTopo".lower(),
        "getxmlfromcpu",
        "does not",
    ),
    say("not-pci", r"network path \S+ is not a PCI device", "is not a pci device"),
    say(
        "no-algorithm",
        r"no algorithm/protocol available|Unrecognized (?:prefix|element) token|Invalid NCCL_(?:ALGO|PROTO)",
        "algorithm/protocol",
        "unrecognized ",
        "invalid nccl_",
    ),
    say(
        "cuda-failure",
        r"(?:(?P<where>[\w/.-]+\.(?:cc|cu|h|c|cpp)):\d+ (?:\([^)]*\) )?(?:NCCL )?(?:WARN )?)?(?:Cuda|HIP|CUDA) failure (?:[\w./]+:\d+:? )?(?:(?P<code>\d+) )?'(?P<text>[^']+)(?:'|$)",
        "failure ",
    ),
    say(
        "nccl-calloc",
        r"Failed to CUDA (?:host )?(?:calloc|malloc)|\[Rem Allocator\] Allocation failed|cudaMalloc failed",
        "failed to cuda",
        "rem allocator",
        "cudamalloc failed",
    ),
    say(
        "same-gpu",
        r"Duplicate GPU detected ?: rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<device>\w+)",
        "duplicate gpu detected",
    ),
    say("same-gpu", r"Duplicate GPU detected", "duplicate gpu detected"),
    say("same-gpu", r"Multiple [Rr]anks (?:are|detected) using the same GPU", "multiple ranks"),
    say(
        "nvml-lookup",
        r"nvmlDeviceGetHandleByPciBusId\(?\)? ?failed|nvmlDeviceGetHandleByPciBusId.{0,20}Not Found",
        "nvmldevicegethandlebypcibusid",
    ),
    say(
        "cumem-host",
        r"cuMem host allocations do not appear to be working|CUMEM Host is not supported|NUMA (?:support|calls).{0,40}(?:disabl|block)",
        "cumem",
        "numa ",
    ),
    say(
        "nvls-failed",
        r"Failed to bind NVLink SHARP|NVLS.{0,60}(?:bind|multicast).{0,40}failed|Multicast support requested .{0,30}none available|cuMulticast\w+ ?(?:\(.*?\))? failed",
        "nvlink sharp",
        "nvls",
        "multicast",
    ),
    say(
        "mnnvl-failed",
        r"MNNVL .{0,40}available but not (?:supported|working)|MNNVL is not supported",
        "mnnvl",
    ),
    # Shared memory.
    say(
        "shm-failed",
        r"failed to extend /dev/shm/nccl-\S+|Error while (?P<how>\w+) shared memory segment (?P<segment>\S+)|failed to create shared memory file"
        r"|Call to posix_fallocate failed ?: No space left on device|Call to (?:ftruncate|shm_open|posix_fallocate|fallocate) failed|Could not map \S*nccl-\S+",
        "/dev/shm/nccl-",
        "shared memory segment",
        "shared memory file",
        "posix_fallocate",
        "ftruncate",
        "shm_open",
        "fallocate",
        "could not map",
    ),
    # Consequences inside NCCL.
    say(
        "closed-by-peer",
        r"Connection closed by remote peer(?: "
        + ADDRESS.replace("<(?P<port>", "<(?P<port>")
        + r"| (?P<peer>[\w.-]+)<\d+>)?",
        "closed by remote peer",
    ),
    say(
        "nccl-reset",
        r"Call to (?:recv|send|read|write)\w*(?: (?:from|to) (?P<peer>\S+))? failed ?: (?:Connection reset by peer|Broken pipe)|(?:recv|send) .{0,40}Connection reset",
        "call to ",
        "connection reset",
    ),
    say(
        "proxy-failed",
        r"\[Proxy Service.{0,12}\]? Failed to execute operation|Proxy Call to rank \d+ failed|Error encountered progressing operation|Could not receive type from localRank|Socket recv failed while polling for opId",
        "proxy",
        "operation=",
        "localrank",
        "opid",
    ),
    say(
        "wrong-socket",
        r"socketFinalizeAccept|wrong (?:socket )?type \d+ != \d+|wrong magic|socketTryAccept",
        "socketfinalizeaccept",
        "wrong type",
        "wrong magic",
        "wrong socket type",
        "sockettryaccept",
    ),
    say(
        "nccl-remote",
        r"ncclRemoteError|remote process exited or there was a network error",
        "ncclremoteerror",
        "remote process exited",
    ),
    say(
        "nccl-system", r"unhandled system error|ncclSystemError", "unhandled system error", "ncclsystemerror"
    ),
    say(
        "nccl-cuda",
        r"unhandled cuda error|ncclUnhandledCudaError",
        "unhandled cuda error",
        "ncclunhandledcudaerror",
    ),
    say(
        "nccl-internal",
        r"internal error(?: - please report this issue|, NCCL version)|ncclInternalError",
        "internal error",
        "ncclinternalerror",
    ),
    say(
        "nccl-usage",
        r"ncclInvalid(?:Usage|Argument)|invalid (?:usage|argument)(?: \(run with|, NCCL version)",
        "ncclinvalid",
        "invalid usage",
        "invalid argument (run",
        "invalid argument, nccl",
    ),
    say("last-error", r"Last error:\s*(?P<text>.*)$", "last error:"),
    say("warn", r"NCCL WARN (?P<text>.*)$", "nccl warn"),
    say(
        "init-stopped",
        r"TIMEOUT after (?P<seconds>\d+) ?s|(?:hung|stuck|no progress) (?:for|after) \d+",
        "timeout after",
        "hung",
        "stuck",
        "no progress",
    ),
)
