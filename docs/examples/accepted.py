"""One node only, on purpose."""

import os

import torch.distributed as dist

os.environ["MASTER_ADDR"] = "localhost"  # ringup: ignore[master-address-in-code]
os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("gloo")
