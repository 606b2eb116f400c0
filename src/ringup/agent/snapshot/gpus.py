"""Use of the node's NVIDIA GPUs, by NVML."""

import ctypes
import threading

MOST_GPUS, MOST_PROCESSES = 64, 256
NOT_AVAILABLE = (1 << 64) - 1
"""`NVML_VALUE_NOT_AVAILABLE` of nvml.h, in place of a process's bytes."""


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_v2_t` of nvml.h, which version 3 of the call fills (driver 510)."""

    _fields_ = [("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong), ("instances", ctypes.c_uint * 2)]


class Gpus(threading.Thread):
    """
    Reads the GPUs in its own thread: a driver that is stuck delays nothing else.

    `found`: (percent of the time busy, bytes used by all, bytes by pid) of each, in NVML's order; [] without
    a driver.  A process has None if the driver does not report its share.
    """

    def __init__(self):
        threading.Thread.__init__(self, daemon=True)
        self.found, self.wanted = [], threading.Event()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml = None
        else:
            self.start()

    def run(self):
        count = ctypes.c_uint()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        while True:
            self.found = [self._one(index) for index in range(min(count.value, MOST_GPUS))]
            self.wanted.wait()
            self.wanted.clear()

    def _one(self, index):
        device, busy, memory = ctypes.c_void_p(), (ctypes.c_uint * 2)(), (ctypes.c_ulonglong * 3)()
        self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        is_known = not self.nvml.nvmlDeviceGetUtilizationRates(device, busy)
        self.nvml.nvmlDeviceGetMemoryInfo(device, memory)  # total, free, used
        processes, count = (_Process * MOST_PROCESSES)(), ctypes.c_uint(MOST_PROCESSES)
        query = getattr(self.nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if not query or query(device, ctypes.byref(count), processes):
            count.value = 0
        users = {
            one.pid: None if one.memory == NOT_AVAILABLE else one.memory for one in processes[: count.value]
        }
        return busy[0] if is_known else None, memory[2], users

    def of_rank(self, pids, local_rank, visible):
        """
        [percent busy, bytes used by all, bytes used by these processes] of their GPU.

        It is the GPU that they use most: often every rank has a little memory on the first one, too.  None
        if unknown; the last number is None if the driver does not report it.
        """
        shares = [[users[pid] or 0 for pid in pids if pid in users] for _, _, users in self.found]
        own = [(sum(share), -index) for index, share in enumerate(shares) if share]
        if own:
            used, index = max(own)
            return [*self.found[-index][:2], used or None]
        # A container hides the processes: there a rank usually has the GPU of its local rank.
        order = visible.split(",") if visible else [str(index) for index in range(len(self.found))]
        index = order[local_rank] if 0 <= local_rank < len(order) else ""
        if any(users for _, _, users in self.found) or not index.isdigit() or int(index) >= len(self.found):
            return None
        return [*self.found[int(index)][:2], None]
