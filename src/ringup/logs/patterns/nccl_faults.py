"""Messages of NCCL and RCCL about failures."""

from __future__ import annotations

from ringup.logs.patterns.tags import ADDRESS, ERRNO, tag
from ringup.nccl import lines

# fmt: off
TAGS = (
    # Interfaces.
    tag("no-socket-interface", "failure establishing",
        r"no socket interface found|NET/Socket ?: no interface found|NET/IB ?: No IP interface found"
        r"|no device found matching \S*, verify NCCL_OOB_NET_IFNAME|no device found matching NCCL_OOB_NET_IFNAME"
        r"|no device found after excluding"),
    # Only with NCCL_COMM_ID, whose address NCCL looks for among this host's networks.
    tag("no-common-subnet", "failure",
        r"No interface found in the same subnet as remote address "
        + ADDRESS
        + "|No usable listening interface found"),
    tag("address-family", "failure establishing", r"family (?P<family>\d+) is neither AF_INET"),
    tag("no-address", "establishing",
        r"(?:WARN|socket\.(?:h|cc):\d+).{0,20}Socket creation failed ?: Address family not supported"),
    tag("nccl-connect", "failure establishing",
        r"[Cc]onnect to " + ADDRESS + r" (?:failed ?:|returned|failed with error) ?(?:\d+ ?\()?" + ERRNO,
        r"btl_tcp.{0,80}connect\(\) to (?P<address>[0-9a-fA-F.:]+) failed: " + ERRNO,
        r"connect\(fd=\d+, (?:\S+ )?dest_addr=(?P<address>[0-9a-fA-F.:]+):(?P<port>\d+)\) failed: " + ERRNO,
        r"Message:\s+connect\(\) to (?P<address>[0-9.]+):(?P<port>\d+) failed",
        # An open connection to a host that went off, or whose path is lost.
        r"Call to (?:recv|send)\w* (?:from|to) "
        + ADDRESS
        + r" failed ?: (?P<reason>Connection timed out|No route to host"
        r"|(?:Network|Host) is unreachable)",
        r"Call to connect (?:failed|timeout|returned) ?:? ?" + ERRNO,
        r"connect returned " + ERRNO + r", (?:retrying|exceeded)",
        r"socket\w*Connect\w*:? (?:exceeded (?:error )?(?:retries|timeouts)|poll\(\) failed"
        r"|poll\(\) returned \d+, no POLLOUT)|exceeded error retry count",
        keep=16),
    tag("nccl-bind", "failure",
        r"(?:Call to bind|bind) failed ?: (?P<reason>Cannot assign requested address|Permission denied|Invalid argument)"),
    # Bootstrap.
    tag("rank-checked-in", "failure", r"rank (?P<rank>\d+) of (?P<nranks>\d+) ranks has already checked in"),
    tag("root-count", "failure", r"mismatch in rank count from procs (?P<a>\d+) : (?P<b>\d+)"),
    tag("root-info", "failure",
        r"mismatch in info from procs, nranks (?P<a>\d+) vs (?P<b>\d+)(?:, nroots (?P<roots_a>-?\d+) vs (?P<roots_b>-?\d+))?"),
    tag("invalid-rank", "", r"Invalid rank requested ?: (?P<rank>\d+)/(?P<nranks>\d+)"),
    tag("bootstrap-truncated", "failure",
        r"Message truncated ?: received (?P<got>[\d,]+) bytes instead of (?P<want>[\d,]+)"),
    tag("data-truncated", "failure",
        r"(?:message truncated ?: )?receiving (?P<got>\d+) bytes instead of (?P<want>\d+)"),
    tag("version-mismatch", "", r"Mismatched NCCL version detected"),
    tag("size-mismatch", "",
        r"collective mismatch error,? ?local size (?P<a>\d+) remote (?:size )?(?P<b>\d+)",
        r"posted incorrect receive info"),
    tag("mismatched-collective", "",
        r"Mismatched collective detected|may be caused by a collective mismatch around rank"),
    # RDMA.
    tag("ib-open-failed", "detail establishing",
        r"Unable to open device (?P<device>[\w.]+)",
        r"ibv_open_device failed|ibv_get_device_list.{0,40}(?:Permission denied|failed)|/dev/infiniband\S* ?:? ?(?:Permission denied|No such file)"),
    tag("wc-error", "failure",
        r"Got completion(?: from peer(?: (?P<peer>\S+?)(?:<\d+>)?)?)? with (?:error |status=)(?:(?P<name>IBV_WC_\w+)\()?(?P<status>\d+)"
        r".{0,120}?vendor[ _]err[ =](?P<vendor>\d+)(?:.{0,120}? hca (?P<hca>\S+))?",
        r"Got completion(?: from peer(?: (?P<peer>\S+?)(?:<\d+>)?)?)? with (?:error |status=)(?:(?P<name>IBV_WC_\w+)\()?(?P<status>\d+)(?P<short>)",
        r"(?P<name>IBV_WC_\w+_ERR)\b",
        r"^\s*Failed status (?P<status>\d+): wr_id ",  # perftest
        # the words of libibverbs and UCX for status 12 and 13
        r"(?P<retry>(?:transport|RNR) retry count(?:er)?) exceeded(?: on (?P<hca>\w[\w:.]*))?"),
    tag("async-event", "detail",
        r"Got async (?:error |fatal )?event ?: (?P<event>[^(\n]+)",
        r"async fatal event.{0,200}: (?P<event>[^:\n]+)$",
        r"(?P<event>GID table change)d?\b",
        r"mlx[45]_core \S+.{0,60}(?P<event>device's health compromised|firmware internal error|internal error detected|TX timeout detected)",
        r"Got non-fatal async event: (?P<event>[^(\n]+)"),
    tag("ib-port-down", "", r"mlx5_core \S+.*(?:Link down|Port \d+ down)|NIC Link is Down"),
    tag("modify-qp", "failure",
        r"non-zero status: (?P<errno>\d+) ibv_modify_qp failed",
        r"ibv_modify_qp failed with (?:error )?(?:(?P<errno>\d+) )?(?P<reason>[A-Z][A-Za-z ]+?)(?: errno \d+)?\s*(?:[,.]|$)(?:.*?on dev (?P<device>[\w:]+))?",
        r"[Ff]ailed to modify QP (?:\S+ )?to \w+[:,.] (?P<reason>[A-Z][A-Za-z ]+)",
        r"^ *Failed to modify QP (?:\d{1,8} )?to RT[RS]$",  # of perftest
        r"(?P<handle>Unable to create ah\b)|ibv_modify_qp failed|ibv_create_ah\([^)]{1,300}\) .{0,60}failed"),
    tag("gid-empty", "", r"^\s*GID: 00(?::00){15}\s*$"),
    tag("gid-link-local", "", r"\bqpn \d+ mtu \d+ .{0,120}\bGID \d+ \(80FE/"),
    tag("query-gid", "", r"ibv_query_gid\w*(?:\([^)]{0,80}\))? failed"),
    tag("ib-no-memory", "",
        r"(?:ibv_reg_mr\w*|ibv_create_cq|ibv_create_qp|ibv_alloc_pd|ibv_reg_dmabuf_mr|mlx5dv_\w+|efadv_\w+|fi_mr_reg\w*)(?:\([^)]*\))? failed"
        r"(?:(?: with error|:)? ?(?P<reason>Cannot allocate memory|Resource temporarily unavailable))?",
        r"(?:Unable to create (?:extended )?(?:CQ|QP)|failed to (?:register|reg)\S* m(?:emory|r)).{0,80}(?P<reason>Cannot allocate memory)"),
    tag("memlock-said", "",
        r"max(?:imum)? locked memory|ulimit -l|RLIMIT_MEMLOCK|memlock (?:limit|soft)|locked memory limit"),
    tag("memlock-unlimited", "context", r"(?:max locked memory|ulimit -l|memlock|RLIMIT_MEMLOCK)\b[^\n]{0,40}\bunlimited\b(?!')"),
    tag("link-layer", "",
        r"Can't (?:merge|connect) net devices with different link_layer|different link_layer properties|Attempted to (?:connect|merge) incompatible devices|Remote \S+ device is incompatible with the local"),
    tag("nic-count", "",
        r"mixed local (?:Net|CollNet|GIN) device counts|requires NIC \S+ but that NIC is not available|NCCL_IGNORE_NET_MISMATCH|[Nn]et(?:work)? devices? mismatch|Unexpected number of remote rails"),
    tag("net-not-found", "establishing",
        r"Error: network (?P<net>\w[\w ]*?) not found|Failed to initialize any NET plugin"),
    tag("plugin-init-failed", "detail establishing",
        r"aws-ofi-nccl initialization failed|NET/OFI Initializing plugin failed|OFI .{0,60}Couldn't (?:open|enable|create|initialize|allocate) (?:an? )?(?:CQ|AV|EP|domain|fabric|endpoint|completion queue)"
        r"|OFI .{0,60}Couldn't find any optimal provider|find_ofi_provider|OFI NCCL failure|Failed to initialize NET plugin (?P<plugin>\w+)"
        r"|NET/OFI (?:.{0,60}failed to (?:initialize|find (?!callback|rank|shared library info))|Creating .{1,80} failed: |Unable to register memory|Unable to get endpoint|(?:OFI )?fi_\w+(?:\(\))? call failed)|[Ff]ailed to (?:init|load)\w* (?:external )?(?:network|net) plugin|(?:uverbs|EFA) .{0,30}not found",
        # MPI over libfabric, PSM or its own layers
        r"(?P<other>(?<!/)\bOFI [\w() ]{1,40} failed(?! \(ofi_(?!init))|PSM\d can't open \w+ unit|Failure in initializing endpoint|PML add procs failed)"),
    tag("ofi-request", "", r"NET/OFI (?:Request|Operation\S*).{0,40}completed with error"),
    tag("efa-blocked", "failure",
        r"security group on either this instance|Unable to insert remote address into address vector"
        r"|completed with error.{0,120}(?:Unreachable remote|Unresponsive receiver(?:\.| \((?:connection never|reachable by EFA)|$)|\bRC: (?:20|113)\b|\berr: 113\b)"),
    tag("sharp-off", "detail establishing",
        r"Cannot create SHARP job|Streaming Tree lock failed|Cannot initialize CollNet|SHARP (?:coll|group|comm)\w* (?:create|init).{0,40}fail|sharp.{0,40}(?:failed to|unable to) (?:connect|init)|Failed to lock SAT tree|disabling CollNet|unable to connect to Aggregation Manager|No sharp"),
    # Topology and settings.
    tag("topology-broken", "establishing",
        r"Attribute \S+ of node \S+ not found|XML (?:Import|Export) Channel ?: \w+ \S+ not found|XML (?:Topology|Graph) has wrong version"
        r"|XML Parse(?: error)? ?: |XML Mismatch ?:|Could not open XML (?:graph|topology) file|Could not find (?:any )?(?:local path from gpu|GPU (?:close|with rank)|NET with id|net id|gpu rank|CPU|local GPU|id |node of type|intermediate GPU)"
        r"|WARN Could not find real path of(?! \S+ \(/sys/class/infiniband)|could not find CPU close to GPU|Failed to find reverse path|No path computed to go|Add NVLink error|Add PCI Link error|could not find CPU numa"
        r"|too many (?:XML|Topo|nodes)|XML parser is limited|tried to create too many nodes|KV Convert to \w+ ?: could not find value of \S{1,60} in dictionary(?!, falling)|no transport found|Error : ring \d+ does not|getXmlFromCpu|ncclTopo\w+ ?:? (?:could not|parent is NULL|system node)|Could not find rev(?:erse)? link"),
    tag("bad-setting", "",
        r"(?P<said>Invalid (?:NCCL_\w+|config \w+ attribute value)[^.]{0,100})|(?P<said2>NCCL_\w+ (?:has invalid value|is not a valid).{0,60})|(?P<said3>NCCL_\w+=\S+ is out of range.{0,40})|WARN Net : (?P<said4>No valid .{1,60} pair found)|(?P<said5>Unknown netDevs policy)|(?P<said6>All entries except the first must have a prefix.{0,60})"),
    tag("nccl-too-old", "failure", r"NCCL library (?:version )?is (?:too old|not backwards compatible)"),
    tag("nccl-symbol", "failure",
        r"undefined symbol: (?P<symbol>nccl(?!Net|CollNet|Tuner|Profiler|Gin|Ras|Env)[A-Z]\w+)"),
    tag("plugin-register", "detail", r"NET/OFI .{0,60}Unable to register memory.{0,80}RC: ?-22"),
    tag("buffers-refused", "",
        r"ibv_reg_mr\w*(?:\([^)]*\))? failed(?: with error|:)? ?(?P<why>Bad address|Invalid argument)"),
    tag("buffers-own", "context", r"use_nccl_ub\W{1,60}True|expandable_segments:True|NCCL_LOCAL_REGISTER set by|cuMemCreate|ncclMemAlloc", keep=4),
    tag("sidecar", "", r"127\.0\.0\.6(?:<\d|:\d)"),
    tag("sidecar-there", "context", r"\b(?:istio|linkerd)-proxy\b", keep=4),
    # Arguments that NCCL's checks of its caller refuse.
    tag("nccl-misused", "failure",
        r"WARN (?P<said>\w+ ?: (?:\w+ (?:allocated on device \d+ mismatchs with|argument is NULL|(?:\S+ )?is not a valid pointer)|invalid (?:reduction operation|root|type|communicator)|reduction operation \d+ unknown|operator (?:is|unknown)|communicator was revoked|not in a group call|pass NULL).{0,80})",
        r"WARN (?P<said>(?:Error ?: )?(?:corrupted comm object|mixing different streams within a group|Trying to (?:recv from|send to|recv to) self without|comm \S+ has already been destroyed|Attempt to use communicator before|Blocking and nonblocking communicators|Streams given to a communicator|Either none or all communicators|Illegal to have some communicators|Data type supplied to user-created|ncclCommGetUniqueId should not be called|FP8 reduction support begins|invalid device count|Stream is not being captured).{0,100})"),
    tag("not-pci", "", r"network path \S+ is not a PCI device"),
    tag("no-algorithm", "",
        r"(?P<said>no algorithm/protocol available.{0,80})|(?P<said2>Unrecognized (?:prefix|element) token.{0,80})|(?P<said3>Invalid NCCL_(?:ALGO|PROTO).{0,80})"),
    tag("cuda-failure", "failure local",
        r"(?:(?P<where>[\w/.-]+\.(?:cc|cu|h|c|cpp)):\d+ (?:\([^)]*\) )?(?:NCCL )?(?:WARN )?)?(?:Cuda|HIP|CUDA) (?:failure (?:[\w./]+:\d+:? )?|error [\w./-]+:\d+ )(?:(?P<code>\d+) )?'(?P<text>[^']+)(?:'|$)"),
    tag("nccl-calloc", "",
        r"Failed to CUDA (?:host )?(?:calloc|malloc)|\[Rem Allocator\] Allocation failed|cudaMalloc failed"),
    tag("same-gpu", "",
        r"Duplicate GPU detected ?: rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<device>\w+)",
        r"Duplicate GPU detected",
        r"Multiple [Rr]anks (?:are|detected) using the same GPU"),
    tag("nvml-lookup", "",
        r"nvmlDeviceGetHandleByPciBusId\(?\)? ?failed|nvmlDeviceGetHandleByPciBusId.{0,20}Not Found"),
    tag("cumem-host", "detail establishing",
        r"cuMem host allocations do not appear to be working|CUMEM Host is not supported|NUMA (?:support|calls).{0,40}(?:disabl|block)"),
    tag("nvls-failed", "",
        r"Failed to bind NVLink SHARP|NVLS.{0,40}(?:bind|multicast).{0,40}failed|Multicast support requested .{0,30}none available|cuMulticast\w+ ?(?:\(.*?\))? failed"),
    tag("mnnvl-failed", "", r"MNNVL .{0,40}available but not (?:supported|working)|MNNVL is not supported on this system"),
    # Shared memory.
    tag("shm-failed", "failure",
        r"failed to extend /dev/shm/nccl-\S+|Error while (?P<how>\w+) shared memory segment (?P<segment>\S+)|failed to create shared memory file"
        r"|Call to posix_fallocate failed ?: No space left on device|Call to (?:ftruncate|shm_open|posix_fallocate|fallocate) failed|Could not map \S*nccl-\S+"),
    # Consequences inside NCCL.
    tag("closed-by-peer", "failure consequence end",
        r"Connection closed by remote peer(?: "
        + ADDRESS
        + r"| (?P<peer>[\w.-]+)<\d+>)?",
        r"An MPI communication peer process has unexpectedly disconnected"),
    tag("nccl-reset", "consequence",
        r"Call to (?:recv|send|read|write)\w*(?: (?:from|to) (?P<peer>\S+))? failed ?: (?:Connection reset by peer|Broken pipe)|(?:recv|send) .{0,40}Connection reset"),
    tag("proxy-failed", "failure consequence",
        r"\[Proxy Service.{0,12}\]? Failed to execute operation|Proxy Call to rank \d+ failed|Error encountered progressing operation|Could not receive type from localRank|Socket recv failed while polling for opId"),
    tag("wrong-socket", "",
        r"socketFinalizeAccept|wrong (?:socket )?type \d+ != \d+|wrong magic|socketTryAccept"),
    tag("nccl-remote", "failure consequence end nccl",
        r"ncclRemoteError|remote process exited or there was a network error"),
    tag("nccl-system", "failure nccl", r"unhandled system error|ncclSystemError"),
    tag("nccl-cuda", "failure local", r"unhandled cuda error|ncclUnhandledCudaError"),
    tag("nccl-internal", "failure nccl",
        r"internal error(?: - please report this issue|, NCCL version)|ncclInternalError"),
    tag("nccl-usage", "failure nccl",
        r"ncclInvalid(?:Usage|Argument)|invalid (?:usage|argument)(?: \(run with|, NCCL version)|NCCL failure \d: invalid"),
    tag("warn", "context", lines.WARNING, keep=12),
    # The report of RAS (`ncclras`): collectives that the ranks of a communicator have launched.
    tag("ras-count", "context",
        r"Communicator ranks have different (?P<kind>\w+) operation counts",
        r"(?P<many>\d+) ranks have (?:launched up to operation (?P<op>\d+)|not launched any operations)",
        r"Rank (?P<rank>\d+) has (?:launched up to operation (?P<op>\d+)|not launched any operations) -- GPU",
        r"^\s*Rank (?P<one>\d+) -- GPU \S+ managed by process \d+ on node \S",
        keep=64),
    # Frames of NCCL's own monitor in a native stack, and the release of an installer: known defects need them.
    tag("ras-frame", "context", r"(?:rasMsg|ncclRas)\w*", keep=2),
    tag("init-stopped", "failure hang choice nccl",
        r"TIMEOUT after (?P<seconds>\d+) ?s|(?:hung|stuck|no progress) (?:for|after) \d+"),
)
