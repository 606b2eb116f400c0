"""What breaks on several nodes is read from scripts and job files; what is fine is passed over in silence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringup import lint
from ringup.cli import command_line
from ringup.launchfiles.files import read
from ringup.lint.rule import ACROSS, SCRIPT, SHELL
from ringup.rules import PROBLEMS, Finding
from tests import (
    launch_alone,
    launch_cases,
    launch_contradictions,
    launch_given,
    launch_places,
    launch_public,
    launch_read,
    launch_starters,
    launch_steps,
)
from tests.lint_numbers import (
    AT_ITSELF,
    AT_THE_HEAD,
    EARLY,
    IN_TIME,
    MANY_WORLDS,
    NUMBERS,
    ONE_WORLD,
)

SCRIPTS = Path(__file__).parent / "scripts"
CLEAN = sorted(SCRIPTS.glob("clean_*"))
HEAD = "import os, torch\nimport torch.distributed as dist\nimport torch.multiprocessing as mp\n"
END = "\ndist.destroy_process_group()\n"
JOB = "#!/bin/bash\n#SBATCH --nodes=2\n"
SRUN = "srun --kill-on-bad-exit=1 "


def script(code: str) -> dict[str, str]:
    return {"train.py": HEAD + code + END}


def pod(container: str, spec: str = "") -> dict[str, str]:
    """A PyTorchJob of two pods with one rank each."""
    made = f"{{command: [torchrun, train.py], {container}}}"
    pods = "".join(
        f"{kind}: {{replicas: 1, template: {{spec: {{{spec} containers: [{made}]}}}}}}, "
        for kind in ("Master", "Worker")
    )
    return {"a.yaml": f"kind: PyTorchJob\nspec: {{pytorchReplicaSpecs: {{{pods}}}}}\n"}


def job(*lines: str) -> dict[str, str]:
    return {"job.sh": JOB + "\n".join(lines) + "\n"}


def names(files: dict[str, str]) -> set[str]:
    return {finding.rule for finding in lint.lint(files)}


def only(files: dict[str, str], rule: str) -> Finding:
    found = [finding for finding in lint.lint(files) if finding.rule == rule]
    assert len(found) == 1, [f"{f.where} {f.rule}: {f.found}" for f in lint.lint(files)]
    return found[0]


SPAWN = """
def worker(index, size):
    dist.init_process_group("gloo", rank={rank}, world_size={size})
def main(size):
    mp.spawn(worker, args=(size,), nprocs={count})
main({given})
"""
ARGUMENT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument({spelling}, type=int)
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
dist.init_process_group("nccl")
"""
NODES = "torchrun --nnodes=2 --nproc-per-node=4 --node-rank={} --master-addr={} --master-port=$PORT train.py"


def nodes(*parts: tuple[str, int, str]) -> dict[str, str]:
    """A file with one line per node: (what the comment says, node rank, address)."""
    lines = [line for host, rank, address in parts for line in (f"# {host}", NODES.format(rank, address))]
    return {"start.sh": "\n".join(lines)}


INIT = 'dist.init_process_group("nccl")\n'
MESH = (
    "from torch.distributed.device_mesh import init_device_mesh\n"
    'mesh = init_device_mesh("cuda", (8,))\nmodel = model.cuda()\n'
)
ALONE, ADDRESS = 'os.environ["{}"] = "1"', 'os.environ["MASTER_ADDR"] = "localhost"'
ALONE = 'if int(os.environ.get("WORLD_SIZE", "1")) == 1:\n    os.environ["WORLD_SIZE"] = "1"\n    '
TO_0 = "if up and rank != 0:\n    dist.gather(x)\nelse:\n    if up:\n        dist.gather(x, all)\n"
OF_ONE = 'dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)'
SET = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
DEBUGGED = 'os.environ["NCCL_DEBUG"] = "INFO"\n'
LOADER = "torch.utils.data.DataLoader(data, num_workers={})\n"
PAIRED = "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(x, 0)\n"
RANK = 'rank = int(os.environ["RANK"])\n'
STEPS = "for step in range(n):\n    if {}:\n        {}"
STARTED = """
def run(index, n):
    {}
for i in range(n):
    mp.Process(target=run, args=(i, n)).start()
"""
GATHERED = (
    "engine._zero3_consolidated_16bit_state_dict()",
    "with deepspeed.zero.GatheredParameters(list(m.parameters())):\n        pass",
)
IF_0, IF_MAIN = "if dist.get_rank() == 0:\n    ", "if a.is_main_process:\n    a.get_state_dict(m)"
BY_PLUGIN = "import accelerate as hf\na = hf.Accelerator(fsdp_plugin=hf.FullyShardedDataParallelPlugin())\n"
SHARDED = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nm = Net()\nm = FSDP(m)\n"
LOCALLY = "with FSDP.state_dict_type(m, StateDictType.LOCAL_STATE_DICT):\n"
OF_MATRIX = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lora-rank", type=int, default=0)
parser.add_argument("--rank", type=int, default=4)
args = parser.parse_args()
lora_rank = args.lora_rank
config = LoraConfig(r=args.rank)
{}
"""
TESTS_OF_MATRIX = (
    "args.lora_rank > 0",
    "lora_rank == 0",
    "not args.lora_rank",
    "args.rank > 0",
    "low_rank == 1",
)
ZERO_3_IN_A_FILE = script(
    'import deepspeed\nengine, _, _, _ = deepspeed.initialize(config="ds.json")\n'
    "if dist.get_rank() == 0:\n    engine.save_16bit_model(d)"
)
TRAINER = RANK + "from transformers import Trainer\ntrainer = Trainer(m)\n"
FULL_STATE = RANK + (
    "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
    "from torch.distributed.fsdp import fully_shard\n"
    "fully_shard(m)\nfull = StateDictOptions(full_state_dict=True)\n"
)
STAGE_3 = 'c = {"zero_optimization": {"stage": 3}}\n'
ENGINE = "import deepspeed\nengine, _, _, _ = deepspeed.initialize()\n"
SUMMED = """
for epoch in range(epochs):
    for i in range(n):
        step = epoch * n + i
        if step % 100 == 0:
            dist.all_reduce(loss)
"""
NAMES = "scontrol show hostnames $SLURM_JOB_NODELIST"
BY_SLURM = "bash -c 'torchrun --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR train.py'"
C10D = "torchrun --nnodes {} --rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint={} train.py"
POD = """kind: Job
spec:
  parallelism: 2
  completions: 2
  template: {{spec: {{containers: [{{name: a, command: [bash, -c, "{}"]}}]}}}}
"""
MEGATRON = "torchrun --nproc_per_node {} pretrain_gpt.py --tensor-model-parallel-size "
PRESET = "name: a, env: [{name: NCCL_RINGS, value: x}]"
BATCHES = "deepspeed --num_gpus 8 train.py --deepspeed ds.json"
HOSTS = "cat > hosts <<EOF\n{}\nEOF"
DEEPSPEED = "deepspeed --hostfile hosts"
EIGHT = "#SBATCH --ntasks-per-node=8"
TORCHRUN = "torchrun --nproc-per-node 8 train.py"

CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "global-rank-as-device": (
        [
            script('torch.cuda.set_device(int(os.environ["RANK"]))'),
            script('def run(r):\n    model.to(r)\nrun(int(os.environ["RANK"]))'),
            script('x = torch.ones(3, device=f"cuda:{dist.get_rank()}")'),
            script("DDP(model, device_ids=[dist.get_rank()])"),
            script("torch.accelerator.set_device_index(dist.get_rank())"),
            script('import os as o\nx.cuda(int(o.environ.get("SLURM_PROCID", 0)))'),
        ],
        [
            script(SET),
            script("torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())"),
            script("def run(rank):\n    torch.cuda.set_device(rank)"),  # nobody here says what it is
            script("def run(i, n):\n    torch.cuda.set_device(i)\nmp.spawn(run, args=(2,), nprocs=n)"),
        ],
    ),
    "local-rank-as-global-rank": (
        [script('dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=n)')],
        [
            script('dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=n)'),
            script(ALONE + 'os.environ["RANK"] = os.environ.get("LOCAL_RANK", "0")'),
        ],
    ),
    "spawn-knows-one-node": (
        [
            script(SPAWN.format(rank="index", size="size", count="size", given="n")),
            script(STARTED.format('dist.init_process_group("gloo", rank=index, world_size=n)')),
        ],
        [script(SPAWN.format(rank="node * size + index", size="size", count="size", given="n"))],
    ),
    "spawn-count-in-code": (
        [script(SPAWN.format(rank="node * 4 + index", size="size", count="size", given="4"))],
        [script(SPAWN.format(rank="n * 4 + index", size="s", count="torch.cuda.device_count()", given="4"))],
    ),
    "world-size-in-code": (
        [
            script('dist.init_process_group("gloo", rank=r, world_size=4)'),
            script('os.environ["WORLD_SIZE"] = "8"'),
            script('if __name__ == "__main__":\n    os.environ["RANK"] = "0"'),
            script(f"if args.train:\n    {OF_ONE}"),
            script('if args.distributed:\n    dist.init_process_group("nccl", rank=r, world_size=4)'),
            script('if args.distributed:\n    os.environ["WORLD_SIZE"] = "4"'),
        ],
        [
            script('dist.init_process_group("gloo", world_size=int(os.environ["WORLD_SIZE"]), rank=r)'),
            script(
                f"if 'RANK' not in os.environ:\n    {ALONE.format('RANK')}\n    {ALONE.format('WORLD_SIZE')}"
            ),
            script('if "RANK" not in os.environ:\n    os.environ["LOCAL_RANK"] = "0"'),
            script('if "LOCAL_RANK" not in os.environ:\n    os.environ["WORLD_SIZE"] = "1"'),
            script(f'if "RANK" in os.environ:\n    dist.init_process_group("nccl")\nelse:\n    {OF_ONE}'),
            script(f"if not args.distributed:\n    {OF_ONE}"),
            script(f'ddp = int(os.environ.get("RANK", -1)) != -1\nif not ddp:\n    {OF_ONE}'),
            script(f'def f():\n    if "RANK" in os.environ:\n        return g()\n    {OF_ONE}'),
            script(f'try:\n    r = os.environ["RANK"]\nexcept KeyError:\n    {OF_ONE}'),
            script('dist.init_process_group("fake", rank=0, world_size=8)'),
            script('dist.init_process_group("gloo", world_size=1, rank=0, store=dist.HashStore())'),
            script('if a:\n    os.environ["LOCAL_RANK"] = own()\nelse:\n    os.environ["LOCAL_RANK"] = "0"'),
        ],
    ),
    "local-rank-argument-expected": (
        [script(ARGUMENT.format(spelling='"--local-rank", "--local_rank"'))],
        [
            script(ARGUMENT.format(spelling='"--local-rank"') + 'x = os.environ.get("LOCAL_RANK")'),
            script(ARGUMENT.format(spelling='"--local-rank"').replace("args.local_rank", "0")),
        ],
    ),
    "local-rank-argument-rejected": (
        [
            script(ARGUMENT.format(spelling='"--local_rank"')),
            {
                **script("import argparse\nargparse.ArgumentParser().parse_args()"),
                "a.sh": "python3 -u -m torch.distributed.launch --nproc_per_node 2 train.py",
            },
        ],
        [
            script(ARGUMENT.format(spelling='"--local-rank", "--local_rank"')),
            {
                **script("import argparse\nargparse.ArgumentParser().parse_args()"),
                "a.sh": "python3 -m torch.distributed.launch --use-env --nproc_per_node 2 train.py",
            },
        ],
    ),
    "local-rank-argument-missing": (
        [{**script(ARGUMENT.format(spelling='"--local-rank"')), "a.sh": TORCHRUN}],
        [{**script(ARGUMENT.format(spelling='"--local-rank"')), "a.sh": f"{TORCHRUN} --local-rank 0"}],
    ),
    "dataloader-workers-exceed-cpus": (
        [
            script(LOADER.format("os.cpu_count()")),
            {**script(LOADER.format(4)), **job("#SBATCH --cpus-per-task=16", SRUN + TORCHRUN)},
        ],
        [
            script(LOADER.format("len(os.sched_getaffinity(0)) // 4")),
            script(LOADER.format("os.cpu_count() // 8")),
            {**script(LOADER.format(4)), **job("#SBATCH --cpus-per-task=32", SRUN + TORCHRUN)},
        ],
    ),
    "master-address-in-code": (
        [
            script('os.environ["MASTER_ADDR"] = "localhost"'),
            script('os.environ.update({"MASTER_ADDR": "10.0.0.7"})'),
            script(f"if args.distributed:\n    {ADDRESS}"),
            script('dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + port, rank=r)').copy()
            | script('dist.init_process_group("gloo", init_method="tcp://127.0.0.1:4000", rank=r)'),
            script('ADDR = "127.0.0.1"\ndist.init_process_group(init_method=f"tcp://{ADDR}:{5000}")'),
        ],
        [
            script('os.environ.setdefault("MASTER_ADDR", "localhost")'),
            script('if "MASTER_ADDR" not in os.environ:\n    os.environ["MASTER_ADDR"] = "localhost"'),
            script(
                'try:\n    x = os.environ["A"]\nexcept KeyError:\n    os.environ["MASTER_ADDR"] = "localhost"'
            ),
            script('os.environ["MASTER_ADDR"] = args.address'),
            script(f"if not 'RANK' in os.environ:\n    {ALONE.format('WORLD_SIZE')}\n    {ADDRESS}"),
            script(f"if args.world_size == 1:\n    {OF_ONE}"),
            script('dist.init_process_group("gloo", init_method=args.url)'),
        ],
    ),
    "master-port-in-code": (
        [script('os.environ["MASTER_PORT"] = "29500"')],
        [script('os.environ["MASTER_PORT"] = str(args.port)')],
    ),
    "device-never-chosen": (
        [
            script(INIT + "model = torch.nn.Linear(3, 3).cuda()"),
            script(INIT + 'model.to("cuda")'),
            {**script(f"import common\n{INIT}common.f()\nmodel.cuda()"), "common.py": "def f(): pass\n"},
            script(f"import timm\n{INIT}m = timm.create_model(name).cuda()"),
            script(f"import torchvision\n{INIT}torchvision.init()\nmodel.cuda()"),
            script(f"torch.accelerator.set_device_index(0)\n{INIT}model.cuda()"),
        ],
        [
            {**script(f"import common\n{INIT}common.f()\nmodel.cuda()"), "common.py": f"def f():\n    {SET}"},
            {
                **script(f"from common.a import f\n{INIT}f()\nmodel.cuda()"),
                "common/a.py": "from .b import f\n",
                "common/b.py": f"def f():\n    {SET}",
            },
            script(
                f"from timm.utils import init_distributed_device\n{INIT}init_distributed_device(a)\nm.cuda()"
            ),
            script(f"from . import common\n{INIT}common.set_gpu()\nmodel.cuda()"),
            script(SET.replace("cuda.set_device", "accelerator.set_device_index") + INIT + "model.cuda()"),
            script(INIT + SET.replace("cuda.set_device", "set_default_device") + "model.cuda()"),
            script(SET + INIT + "model = torch.nn.Linear(3, 3).cuda()"),
            script('dist.init_process_group("gloo")\nx = y.cuda()'),
            script(INIT + 'model.to(f"cuda:{local}")'),
            script(INIT.replace(")", ", device_id=d)") + "model.cuda()"),
            script("import deepspeed\n" + INIT + "model.cuda()"),
        ],
    ),
    "device-chosen-too-late": (
        [
            script(INIT + "dist.barrier()\n" + SET),
            script(f"{INIT}dist.barrier()\ntorch.accelerator.set_device_index(n)\nx.cuda()"),
        ],
        [script(INIT + SET + "dist.barrier()\n")],
    ),
    "no-destroy-process-group": (
        [{"train.py": HEAD + SET + INIT}],
        [
            script(SET + INIT),
            {"train.py": HEAD + SET + INIT + "import atexit\natexit.register(dist.x)\n" + END},
            {"helper.py": HEAD + f"def join():\n    {INIT}"},
        ],
    ),
    "no-timeout-while-debugging": (
        [
            script(DEBUGGED + SET + INIT),
            {**script(SET + INIT), "a.sh": "export NCCL_DEBUG=INFO\n" + TORCHRUN},
        ],
        [
            script(DEBUGGED + SET + INIT.replace(")", ", timeout=t)")),
            {**script(SET + INIT), "a.sh": TORCHRUN},
        ],
    ),
    "timeout-not-timedelta": (
        [
            script(SET + INIT.replace(")", ", timeout=1800)")),
            script(SET + "limit = 3600.0\n" + INIT.replace(")", ", timeout=limit)")),
        ],
        [
            script(SET + INIT.replace(")", ", timeout=datetime.timedelta(seconds=1800))")),
            script(SET + INIT.replace(")", ", timeout=None)")),
            script(SET + INIT.replace(")", ", timeout=args.timeout)")),
            script("def f(t=60):\n    " + INIT.replace(")", ", timeout=t)") + "f(timedelta(seconds=60))"),
        ],
    ),
    "process-group-twice": (
        [script(INIT + 'dist.init_process_group("gloo")'), script("def f():\n    " + INIT + "    " + INIT)],
        [
            script(INIT + "dist.destroy_process_group()\n" + INIT),
            script(INIT + "cleanup()\n" + INIT),
            script("if cpu:\n    " + INIT + "else:\n    " + INIT),
            script(INIT + "if not dist.is_initialized():\n    " + INIT),
        ],
    ),
    "collective-on-some-ranks": (
        [
            script(RANK + "if rank == 0:\n    dist.barrier()"),
            *(script(STAGE_3 + ENGINE + "if dist.get_rank() == 0:\n    " + what) for what in GATHERED),
            {**ZERO_3_IN_A_FILE, "ds.json": '{"zero_optimization": {"stage": 3}}'},
            script(TRAINER + "if rank == 0:\n    trainer.evaluate()"),
            script(STAGE_3 + TRAINER + "if trainer.is_world_process_zero():\n    trainer.save_model(d)"),
            script(BY_PLUGIN + "if a.is_main_process:\n    a.get_state_dict(m)"),
            script(SHARDED + RANK + "def save(m):\n    m.state_dict()\nif rank == 0:\n    save(m)"),
            script(FULL_STATE + "if rank == 0:\n    get_model_state_dict(m, options=full)"),
            script("if dist.get_rank() != 0:\n    x = 1\nelse:\n    dist.all_reduce(x)"),
            script(RANK + "def f():\n    if rank != 0:\n        return\n    dist.barrier()"),
            script(RANK + "def f():\n    dist.all_gather(a, b)\nif not rank:\n    f()"),
            script(RANK + "if rank == 0 and epoch > 3:\n    save()\nelse:\n    dist.barrier()"),
            script(RANK + "if rank == 0:\n    save()\nelif epoch > 3:\n    dist.barrier()"),
            script(RANK + "main = rank == 0\nif main and epoch > 3:\n    dist.broadcast(x, src=0)"),
            script(
                "import accelerate\na = accelerate.Accelerator()\n"
                "if a.is_main_process:\n    a.wait_for_everyone()"
            ),
            script(
                "import deepspeed\nengine, _, _, _ = deepspeed.initialize()\n"
                "if dist.get_rank() == 0:\n    engine.save_checkpoint(d)"
            ),
            script(RANK + STEPS.format("rank != 0", "continue") + "\n    dist.barrier()"),
            script(STAGE_3 + ENGINE + "if dist.get_rank() == 0:\n    engine.save_16bit_model(d)"),
            script(SHARDED + RANK + "if rank == 0:\n    torch.save(m.state_dict(), p)"),
            script(SHARDED + RANK + "m(x).backward()\nif rank == 0:\n    print(m(x))"),
            script("if args.dp_rank == 0:\n    dist.barrier()"),
            script("if self.data_parallel_rank == 0:\n    dist.barrier()"),
            script(STARTED.format("if index == 0:\n        dist.barrier()")),
            script(RANK + STEPS.format("step % 10 == 0 and rank == 0", "dist.barrier()")),
            script(
                "def run(i, n):\n    if i == 0:\n        dist.barrier()\nmp.spawn(run, args=(2,), nprocs=n)"
            ),
            script(
                "def f(i):\n    r = nr * 8 + i\n    if r == 0:\n        dist.barrier()\nmp.spawn(f, nprocs=n)"
            ),
        ],
        [
            script(STEPS.format("step % 10 == 0", "dist.all_reduce(loss)")),
            script(RANK + TO_0),
            *(script(STAGE_3 + ENGINE + what) for what in GATHERED),
            *(script(STAGE_3 + STAGE_3.replace("3", "2") + ENGINE + IF_0 + what) for what in GATHERED),
            {**ZERO_3_IN_A_FILE, "ds.json": '{"zero_optimization": {"stage": 2}}'},
            ZERO_3_IN_A_FILE,
            script(TRAINER + "trainer.evaluate()\nif rank == 0:\n    trainer.save_model(d)"),
            script(BY_PLUGIN.replace("Plugin()", "Plugin() if args.fsdp else None") + IF_MAIN),
            script(
                SHARDED + RANK + "def save(m):\n    m.state_dict()\nif rank == 0:\n    save(m)\nsave(net)"
            ),
            script(FULL_STATE + "get_model_state_dict(m, options=full)"),
            script(
                FULL_STATE.replace("True", "False")
                + "if rank == 0:\n    get_model_state_dict(m, options=full)"
            ),
            script(
                FULL_STATE.replace("fully_shard(m)", "if args.fsdp:\n    fully_shard(m)")
                + "if rank == 0:\n    get_model_state_dict(m, options=full)"
            ),
            script(STEPS.format("step == 0", "dist.barrier()")),
            script(STEPS.format("not step", "dist.barrier()")),
            script(STEPS.format("step != 0", "dist.barrier()")),
            script(ENGINE + STEPS.format("step % 100 == 0", "engine.save_checkpoint(d)")),
            script(SUMMED),
            script(RANK + STEPS.format("step % 9", "continue") + "\n    dist.barrier()"),
            script(ENGINE + "if dist.get_rank() == 0:\n    engine.save_16bit_model(d)"),
            script("def f(epoch):\n    if epoch == 0:\n        dist.barrier()\nfor e in range(9):\n    f(e)"),
            script(
                STARTED.format("for step in range(n):\n        if step == 0:\n            dist.barrier()")
            ),
            script(SHARDED + RANK + "s = m.state_dict()\nif rank == 0:\n    torch.save(s, p)"),
            script(SHARDED + RANK + "if rank == 0:\n    print(net(x), net.state_dict(), m.module)"),
            script(SHARDED + RANK + "def save(m):\n    if rank == 0:\n        m.state_dict()\nsave(net)"),
            script(SHARDED + RANK + "m(x).backward()\nm(y)\nif rank == 0:\n    m(z)"),
            script(
                SHARDED.replace("(m)", "(m, sharding_strategy=how)")
                + RANK
                + "if rank == 0:\n    m.state_dict()"
            ),
            script(SHARDED.replace("(m)", "(m, **how)") + RANK + "if rank == 0:\n    m.state_dict()"),
            script(SHARDED + RANK + "m = net\nif rank == 0:\n    m.state_dict()"),
            script(SHARDED + RANK + LOCALLY + "    if rank == 0:\n        m.state_dict()"),
            script(SHARDED.replace("m = ", "if args.fsdp:\n    m = ") + RANK + "if rank == 0:\n    m(x)"),
            script("for rank in range(n):\n    if rank > 0:\n        dist.barrier()"),
            *(script(OF_MATRIX.format(f"if {test}:\n    dist.barrier()")) for test in TESTS_OF_MATRIX),
            script(RANK + PAIRED),
            script(RANK + "if rank == 0:\n    print(1)\ndist.barrier()"),
            script(RANK + "if rank == 0:\n    dist.barrier(group=mine)"),
            script(RANK + "if rank == 0:\n    dist.barrier(mine)\n    dist.all_gather_object(a, b, mine)"),
            script(
                "def load(name, rank0=False):\n    if rank0:\n        dist.barrier()\nload('a', rank0=True)"
            ),
            script(RANK + "if rank == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(x, 0)"),
            script(
                "if args.local_rank not in (-1, 0):\n    dist.barrier()\n"
                "if args.local_rank == 0:\n    dist.barrier()"
            ),
            script(RANK + "if world_size == 1 and rank == 0:\n    dist.barrier()"),
            script("if args.local_rank == -1:\n    x = 1\nelse:\n    dist.barrier()"),
            script(RANK + "def f(all):\n    if all:\n        dist.barrier()\nif rank == 0:\n    f(False)"),
            script(
                RANK + "if how == 'a' and rank == 0:\n    save()\nelif how == 'b':\n    dist.all_reduce(x)"
            ),
        ],
    ),
    "script-not-readable": ([{"train.py": "def f(:\n"}, {"train.py": "x = '\0'"}], [{"train.py": ""}]),
    "slashes-are-no-comment": (
        [job("source /opt/env // the compiler"), job("colossalai run --master_port $P train.py //here")],
        [job("ls /a//b  # // fine", "curl http://host/x", "echo '// text'")],
    ),
    "dash-is-no-hyphen": (
        [job("docker run –shm-size=1g image")],
        [job("echo a – b", "docker run --shm-size=1g i")],
    ),
    "shell-reads-other-words": (
        [
            job("torchrun t.py --name \u201ca b\u201d"),
            job("torchrun t.py\u00a0--lr"),
            job("torchrun ${T t.py"),
        ],
        [
            job(
                "echo \u201cstart\u201d",
                "torchrun t.py --name 'a \u201cb\u201d' --it don\u2019t --out \u201c , \u201d",
            ),
            job("torchrun t.py ${A:-b c} ${B:0:2} ${C} ${D:-", "}"),
        ],
    ),
    "unknown-nccl-variable": (
        [
            job("export GLOO_SOCKET_IFNAM=eth0"),
            job("docker run -e NCCL_SOCKET_IFNAM=eth0 image"),
            script('os.environ["NCCL_SOCKET_IFNAMES"] = "eth0"'),
            script('os.environ.setdefault("NCCL_DEBUGG", "INFO")'),
        ],
        [
            job("export GLOO_SOCKET_IFNAME=eth0", "# NCCL_SOCKET_IFNAM=x", "export NCCL_OFI_TOPO=1"),
            job("echo $NCCL_SOCKET_IFNAM", "MY_NCCL_DEBUGG=1"),
            script('os.environ["NCCL_SOCKET_IFNAME"] = "eth0"'),
        ],
    ),
    "nccl-filter-never-matches": (
        [
            job("export NCCL_SOCKET_IFNAME===eth0"),
            job('NCCL_IB_HCA="mlx5_0, mlx5_1" python train.py'),
            job("env NCCL_IB_HCA==^mlx5_2 python train.py"),
            script('os.environ["NCCL_SOCKET_IFNAME"] = "==eth0"'),
        ],
        [
            job("export NCCL_SOCKET_IFNAME==eth0", "export NCCL_IB_HCA=^=mlx5_0:1,mlx5_1:1"),
            job('export NCCL_SOCKET_IFNAME="=eth0"', "export NCCL_SOCKET_IFNAME==$NIC"),
            script('os.environ["NCCL_SOCKET_IFNAME"] = "=eth0"'),
        ],
    ),
    "value-begins-with-equals": (
        [job("export MASTER_ADDR==10.0.0.1"), job("NCCL_DEBUG==INFO torchrun train.py"), job("A='=b'")],
        [
            job("export NCCL_SOCKET_IFNAME==eth0", "A=b", "if [ $A == b ]; then", "exit", "fi"),
            job("if (( RANK==0 )); then", "exit", "fi", "awk 'NR==2' file", "[[ $A==b ]] && exit"),
            job("while IFS='=' read -r key value; do", 'export "$key=$value"', "done < job.env"),
        ],
    ),
    "rdma-device-name-missing": (
        [
            job("export NCCL_IB_HCA=ib0"),
            job("NCCL_IB_HCA==eth0:1,mlx5_0 python train.py"),
            script('os.environ["NCCL_IB_HCA"] = "ens5"'),
        ],
        [
            job("export NCCL_IB_HCA=mlx5_0,mlx5_bond_0:1", "NCCL_IB_HCA=^mlx5_2 python a.py"),
            job("NCCL_IB_HCA=ib"),
        ],
    ),
    "interface-name-missing": (
        [job("export NCCL_SOCKET_IFNAME=mlx5_0"), script('os.environ["GLOO_SOCKET_IFNAME"] = "mlx5_bond_0"')],
        [job("export NCCL_SOCKET_IFNAME=^docker,lo", "GLOO_SOCKET_IFNAME=ib0 python train.py")],
    ),
    "launcher-on-first-node-alone": (
        [
            job("torchrun --nnodes=2 --nproc-per-node=8 --node-rank=0 --master-addr=$H train.py"),
            job("torchrun --nproc-per-node=8 train.py"),
            {"a.pbs": "#PBS -l select=4:ngpus=8\naccelerate launch --num_machines 4 train.py\n"},
        ],
        [
            job(SRUN + TORCHRUN),
            job("mpirun -np 2 start.sh", TORCHRUN),
            job("python prepare.py", "deepspeed --hostfile h train.py"),
            job("accelerate launch --config_file f.yaml train.py"),
            {"job.sh": "#SBATCH -N 1\n" + TORCHRUN},
            {"job.sh": TORCHRUN},
        ],
    ),
    "backslash-before-space": (
        [job("torchrun \\ ", "  train.py")],
        [job("torchrun \\", "  train.py", "# a \\ ")],
    ),
    "export-takes-further-words": (
        [job("export NCCL_IB_HCA=mlx5 :"), job("export A = b")],
        [
            job("export A=1 B='x y'", "export -n A=2", "export PATH  # found", "export A=`date +%s`"),
            job("A=1", "export A B=2"),
        ],
    ),
    "launcher-started-per-task": (
        [
            job(EIGHT, SRUN + TORCHRUN),
            job(SRUN + "-n 16 " + TORCHRUN),
            job(EIGHT, SRUN + f"bash -c '{TORCHRUN}'"),
        ],
        [
            job("#SBATCH --ntasks-per-node=1", SRUN + TORCHRUN),
            job(EIGHT, SRUN + "python train.py"),
            job(EIGHT, TORCHRUN),
        ],
    ),
    "node-variable-read-too-early": (
        [
            job(SRUN + 'bash -c "torchrun --nnodes 2 --node-rank $SLURM_NODEID --master-addr=$H a.py"'),
            job(SRUN + "python a.py ${SLURM_PROCID}"),
        ],
        [
            job(SRUN + "bash -c 'torchrun --node-rank $SLURM_NODEID'"),
            job(SRUN + 'bash -c "echo \\$SLURM_PROCID"'),
        ],
    ),
    "head-address-guessed": (
        [job("export MASTER_ADDR=$(hostname -i)"), job("head_ip=`hostname -I | cut -d' ' -f1`")],
        [job("echo $(hostname -i)", "# MASTER_ADDR=$(hostname -i)", "export MASTER_ADDR=$(hostname -s)")],
    ),
    "launcher-argument-misread": (
        [
            job("accelerate launch --same_network false train.py"),
            job("torchrun --nproc_per_node 8 python train.py"),
            job("torchrun --nproc_per_node 8 srun train.py"),
            job("torchrun --nproc_per_node 8"),
        ],
        [
            job("accelerate launch --same_network train.py"),
            job("torchrun --no-python python train.py"),
            job("torchrun $ARGUMENTS"),
            job("torchrun --help"),
        ],
    ),
    "node-rank-duplicate": (
        [
            job("FORCE_TORCHRUN=1 NNODES=2 RANK=1 MASTER_PORT=$P llamafactory-cli train a.yaml"),
            nodes(("10.0.0.1", 0, "10.0.0.1"), ("10.0.0.2", 0, "10.0.0.1")),
            {"a.sh": NODES.format(1, "h"), "b.sh": NODES.format(1, "h")},
            job("srun torchrun --nnodes=2 --nproc-per-node=8 --master-addr=$H train.py"),
            job("srun python -m torch.distributed.run --nnodes $SLURM_NNODES --master-addr=$H train.py"),
        ],
        [
            job("srun bash -c 'torchrun --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=$H train.py'"),
            job("srun torchrun --nnodes=2 $MORE train.py"),
            job("srun torchrun --nnodes=2 --standalone train.py"),
            job("export PET_NODE_RANK=$R\nsrun torchrun --nnodes=2 --master-addr=$H train.py"),
            job("srun -w n0 torchrun --nnodes=2 --master-addr=$H train.py"),
            job("NNODES=2 RANK=1 NODE_RANK=1 MASTER_PORT=$P llamafactory-cli train a.yaml"),
            nodes(("10.0.0.1", 0, "10.0.0.1"), ("10.0.0.2", 1, "10.0.0.1")),
            {"a.sh": "\n".join([NODES.format(0, "h"), NODES.format(1, "h")] * 2)},
            {"a.sh": NODES.format(0, "h"), "b.sh": NODES.format(0, "other")},
        ],
    ),
    "rendezvous-without-id": (
        [job(SRUN + C10D.format(2, "$H:1 --rdzv-conf is_host=1").replace("--rdzv-id=1 ", ""))],
        [job(SRUN + "torchrun --rdzv_backend c10d --rdzv_conf is_host=1 --rdzv_id 7 train.py")],
    ),
    "rendezvous-host-unsure": (
        [
            {"a.sh": C10D.format(2, "10.0.0.1:$P")},
            job(f"F=$({NAMES} | head -n1)", "H=$(srun -w $F hostname -i)", SRUN + C10D.format(2, "$H:1")),
        ],
        # torch compares the endpoint with the node's own host name first (elastic/rendezvous/utils.py).
        [
            {"a.sh": C10D.format(1, "10.0.0.1:$P")},
            {"a.sh": C10D.format(2, "node1:$P")},
            {"a.sh": C10D.format(2, "$A:$P")},
            job(f"H=$({NAMES} | head -n 1)", SRUN + C10D.format(2, "$H:1")),
            job("H=$(hostname)", SRUN + C10D.format(2, "$H:1")),
        ],
    ),
    "port-in-file": (
        [job("export MASTER_PORT=29500", "torchrun train.py"), job("colossalai run --host a,b train.py")],
        [
            job("export MASTER_PORT=$((20000 + SLURM_JOB_ID % 1000))", "torchrun train.py"),
            job("MASTER_PORT=1234"),
        ],
    ),
    "tasks-outlive-a-failure": (
        [job("srun " + TORCHRUN)],
        [job(SRUN + TORCHRUN), job("srun -K1 " + TORCHRUN), {"a.sh": "srun " + TORCHRUN}],
    ),
    "processors-not-passed-on": (
        [job("#SBATCH --cpus-per-task=8", SRUN + TORCHRUN)],
        [job("#SBATCH --cpus-per-task=8", SRUN + "-c 8 " + TORCHRUN), job(SRUN + TORCHRUN)],
    ),
    "variable-never-set": (
        [
            job("accelerate launch --num_processes $total train.py"),
            job("A=1", SRUN + "bash -c 'torchrun --nproc_per_node $A train.py'"),
        ],
        [
            job("source conf.sh", "accelerate launch --num_processes $total train.py"),
            job("export A=1", SRUN + "bash -c 'torchrun --nproc_per_node $A train.py'"),
            job("A=1", SRUN + 'bash -c "torchrun --nproc_per_node $A train.py"'),
            job("total=8", "accelerate launch --num_processes $total train.py"),
            job("torchrun $TRAIN train.py"),
        ],
    ),
    "launcher-deprecated": (
        [job("python -m torch.distributed.launch train.py")],
        [job("python -m torch.distributed.run train.py")],
    ),
    "ssh-loop-leaves-ranks": (
        [job("for h in a b; do", "ssh $h torchrun train.py &", "done", "wait")],
        [job("ssh host torchrun train.py"), job("ssh host sleep 5 &")],
    ),
    "head-is-elsewhere": (
        [
            nodes(("first (10.0.0.60)", 0, "10.0.0.63"), ("10.0.0.95", 1, "10.0.0.63")),
            job(f"export MASTER_ADDR=$({NAMES} | tail -n 1)", SRUN + BY_SLURM),
            job(f"hosts=($({NAMES}))", "export MASTER_ADDR=${hosts[1]}", SRUN + BY_SLURM),
        ],
        [
            nodes(("first (10.0.0.63)", 0, "10.0.0.63")),
            nodes(("first", 0, "10.0.0.63")),
            job(f"MASTER_ADDR=$({NAMES} | head -n 1 | tail -1)", SRUN + BY_SLURM),
            job(f"hosts=($({NAMES}))", "export MASTER_ADDR=${hosts[0]}", SRUN + BY_SLURM),
            job("if x; then", f"A=$({NAMES} | head -1)", "else", "A=localhost", "fi", SRUN + BY_SLURM),
            {"a.sh": "torchrun --nproc-per-node 8 --master-addr localhost train.py"},
        ],
    ),
    "meeting-point-differs": (
        [
            nodes(("10.0.0.1", 0, "10.0.0.1"), ("10.0.0.2", 1, "10.0.0.3")),
            {**script('os.environ["MASTER_PORT"] = "1234"'), "a.sh": "MASTER_PORT=2345 torchrun train.py"},
        ],
        [
            nodes(("10.0.0.1", 0, "10.0.0.1"), ("10.0.0.2", 1, "10.0.0.1")),
            {**script('os.environ["MASTER_PORT"] = "2345"'), "a.sh": "MASTER_PORT=2345 torchrun train.py"},
        ],
    ),
    "rendezvous-ids-differ": (
        [{"a.sh": NODES.format(0, "h --rdzv-id=1"), "b.sh": NODES.format(1, "h --rdzv-id=2")}],
        [{"a.sh": NODES.format(0, "h --rdzv-id=1"), "b.sh": NODES.format(1, "h --rdzv-id=1")}],
    ),
    "world-size-disagrees": (
        [
            job("torchrun --nnodes=4 --node-rank 0 train.py"),
            {"a.sh": "accelerate launch --num_machines 2 --num_processes 17 train.py"},
            {"a.sh": "WORLD_SIZE=2 RANK=2 MASTER_PORT=$P python train.py"},
            {"a.sh": NODES.format(0, "h"), "b.sh": NODES.format(1, "h").replace("nnodes=2", "nnodes=3")},
        ],
        [job("torchrun --nnodes=$SLURM_NNODES train.py"), {"a.sh": "WORLD_SIZE=2 RANK=1 python train.py"}],
    ),
    "nproc-exceeds-gpus": (
        [job("#SBATCH --gres=gpu:a100:4", SRUN + TORCHRUN)],
        [job("#SBATCH --gres=gpu:a100:8", SRUN + TORCHRUN)],
    ),
    "rendezvous-endpoint-own": (
        [
            nodes(("a", 0, "localhost")),
            job("export MASTER_ADDR=127.0.0.1", SRUN + "python train.py"),
            job(SRUN + "bash -c '" + C10D.format("$SLURM_NNODES", "$(hostname):1") + "'"),
            {"a.yaml": POD.format("torchrun --nnodes=2 --node_rank=$(I) --master_addr=localhost train.py")},
        ],
        [
            {"a.sh": "torchrun --nproc-per-node 8 --master-addr localhost train.py"},
            job(SRUN + C10D.format("$SLURM_NNODES", "$(hostname):1")),
            job("N=${N:-1} H=${H:-localhost}", "torchrun --nnodes $N --master_addr $H train.py"),
            job(SRUN + "torchrun --standalone train.py"),
        ],
    ),
    # Without an endpoint torch takes localhost for c10d and 127.0.0.1 for static (run.py,
    # elastic/rendezvous/utils.py); accelerate asserts main_process_ip (utils/launch.py).
    "rendezvous-endpoint-missing": (
        [
            job(SRUN + "torchrun --nnodes=2 --rdzv_backend=c10d --master_addr=$H train.py"),
            job("export MASTER_ADDR=$H", SRUN + "torchrun --nnodes=2 --node_rank=$R train.py"),
            job(SRUN + "accelerate launch --num_machines 2 --machine_rank $R --num_processes 16 train.py"),
        ],
        [
            job(SRUN + "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$H train.py"),
            job(SRUN + "torchrun --nnodes=2 $MORE train.py"),
            job("export PET_MASTER_ADDR=$H", SRUN + "torchrun --nnodes=2 --node_rank=$R train.py"),
            job(SRUN + "accelerate launch --config_file a.yaml --num_machines 2 train.py"),
            job("torchrun --nnodes=1 --rdzv_backend=c10d train.py"),
            {"a.yaml": POD.format("torchrun train.py").replace("kind: Job", "kind: PyTorchJob")},
        ],
    ),
    "several-worlds": (
        [
            job(SRUN + "torchrun --nproc_per_node=8 train.py"),
            job(SRUN + "bash -c 'exec torchrun --standalone --nproc_per_node=8 train.py'"),
            job(SRUN + "accelerate launch --num_processes 8 train.py"),
            job(SRUN + "deepspeed --num_gpus 8 train.py"),
            job("mpirun -np 2 --map-by ppr:1:node torchrun --nproc_per_node=8 train.py"),
            {
                "job.sh": "#SBATCH -N 4\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nnodes 2 "
                "--rdzv_backend c10d --rdzv_endpoint $H:1 train.py\n"
            },
            {"a.yaml": POD.format("torchrun --nproc_per_node=8 train.py")},
        ],
        [
            job(SRUN + "-N 1 torchrun --nproc_per_node=8 train.py"),
            job(SRUN + "torchrun --nnodes=$SLURM_NNODES --node_rank=$R --master_addr=$H train.py"),
            job("export PET_NNODES=2", SRUN + "torchrun --nproc_per_node=8 train.py"),
            job(SRUN + "torchrun $MORE train.py"),
            job(SRUN + "python train.py"),
            job("torchrun --nproc_per_node=8 train.py"),
            {"a.sh": "srun torchrun --nproc_per_node=8 train.py"},
            {"a.yaml": POD.format("torchrun train.py").replace("kind: Job", "kind: PyTorchJob")},
        ],
    ),
    "command-cut-short": (
        [
            job("torchrun --nnodes=1 \\ # one", "  train.py"),
            job("torchrun --nnodes=1 \\", "  # --tee 3 \\", "  train.py"),
            job("torchrun --nnodes=1", "  --nproc_per_node=8 train.py"),
        ],
        [
            job("torchrun --nnodes=1 \\", "  train.py  # one"),
            job("A=(--nnodes=1  # one", "  --nproc_per_node=8)", "torchrun ${A[@]} train.py"),
            job("echo a \\", "# nothing follows", "", "torchrun train.py"),
        ],
    ),
    "launcher-option-wrong": (
        [
            job("torchrun --nnodes= --nproc_per_node=8 train.py"),
            job("torchrun --nproc_per_nod=8 --rdzc_backend=c10d train.py"),
            job("torchrun --rdzv_endpoint=<host>:<port> train.py"),
            job("N=", "torchrun --nnodes $N --nproc_per_node 8 train.py").copy()
            | job("accelerate launch --num_machinez 2 train.py"),
        ],
        [
            job("torchrun --nproc-per-node 8 --nnodes $N train.py --nnodes= '--x=<a>'"),
            job("accelerate launch --fsdp_anything 1 train.py"),
        ],
    ),
    # megatron/training/arguments.py and core/num_microbatches_calculator.py assert both.
    "parallel-sizes-do-not-divide": (
        [
            job(MEGATRON.format(8) + "3"),
            job("T=4", MEGATRON.format(8) + "$T --pipeline-model-parallel-size 4"),
            job(MEGATRON.format(8) + "8 --micro-batch-size 3 --global-batch-size 16"),
            job(MEGATRON.format(8) + "2 --expert-model-parallel-size 8"),
        ],
        [
            job(MEGATRON.format(8) + "4 --pipeline-model-parallel-size 2 --micro-batch-size 2"),
            job(MEGATRON.format(8) + "$T"),
            job(MEGATRON.format("$N") + "3"),
            job(MEGATRON.format(8) + "8 --micro-batch-size 2 --global-batch-size 16"),
        ],
    ),
    "preset-without-effect": (
        [
            job("export NCCL_IB_DISABLE=1", "export NCCL_IB_HCA=mlx5_0", SRUN + TORCHRUN),
            job("export NCCL_RINGS=x"),
            job("export NCCL_IB_DISABLE=yes"),
            job("NCCL_DEBUG_SUBSYS=NET python train.py"),
            {
                "a.yaml": POD.format("torchrun train.py").replace(
                    "name: a", "name: a, env: [{name: NCCL_RINGS, value: x}]"
                )
            },
        ],
        [
            job("export NCCL_IB_DISABLE=0", "export NCCL_IB_HCA=mlx5_0"),
            job("export NCCL_DEBUG=INFO", "export NCCL_DEBUG_SUBSYS=NET"),
            job("export NCCL_SOCKET_IFNAME=^docker,lo", "export NCCL_IB_DISABLE=$X"),
        ],
    ),
    "container-keeps-out": (
        [
            job("docker run --ipc=host -p 1:1 img torchrun --nnodes 2 --node_rank $R --master_addr $H t.py"),
            job("docker run --network=host img torchrun --nproc_per_node 8 train.py"),
            job("export NCCL_DEBUG=INFO", "docker run --ipc host --net host img " + TORCHRUN),
            job("docker run --ipc=host --net=host --device=/dev/infiniband img " + TORCHRUN),
            job("export NCCL_DEBUG=INFO", SRUN + "apptainer exec --cleanenv img.sif " + TORCHRUN),
            pod("resources: {limits: {nvidia.com/gpu: 8}}"),
            pod("resources: {limits: {rdma/hca: 1}}"),
            pod("env: [{name: NCCL_IB_HCA, value: mlx5_0}]"),
            pod("", "hostNetwork: true,"),
        ],
        [
            job("docker run --ipc=host img " + TORCHRUN),
            job("export NCCL_DEBUG=INFO", "docker run --shm-size 8g -e NCCL_DEBUG img " + TORCHRUN),
            job("export NCCL_DEBUG=INFO", SRUN + "apptainer exec --nv img.sif " + TORCHRUN),
            job("export NCCL_DEBUG=INFO", SRUN + "--container-image=img " + TORCHRUN),
            pod(""),
            pod("volumeMounts: [{name: shm, mountPath: /dev/shm}], resources: {limits: {nvidia.com/gpu: 8}}"),
            pod("resources: {limits: {rdma/hca: 1}}, securityContext: {capabilities: {add: [IPC_LOCK]}}"),
            pod("env: [{name: NCCL_IB_HCA, value: mlx5_0}], securityContext: {privileged: true}"),
            pod("", "hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet,"),
        ],
    ),
    # DeepSpeed 0.19.8 launcher/runner.py: fetch_hostfile, _parse_hostfile, parse_resource_filter.
    "hostfile-wrong": (
        [
            job(HOSTS.format("n1 slots=8\nn2 8"), DEEPSPEED + " train.py"),
            job(HOSTS.format("n1 slots=8\nn1 slots=8"), DEEPSPEED + " train.py"),
            job(HOSTS.format("n1 slots=8"), DEEPSPEED + " --include n2:0 train.py"),
            job(HOSTS.format("n1 slots=8"), DEEPSPEED + " --num_nodes 2 train.py"),
        ],
        [
            job(HOSTS.format("n1 slots=8\n# n2\nn2 slots=8"), DEEPSPEED + " --include n2:0 train.py"),
            job(DEEPSPEED + " train.py"),
            job("deepspeed --hostfile $H train.py"),
        ],
    ),
    "rank-from-the-scheduler": (
        [
            {**script('r = int(os.environ["SLURM_PROCID"])'), "a.sh": TORCHRUN},
            {**script("from mpi4py import MPI"), "a.sh": TORCHRUN},
        ],
        [
            {**script('r = int(os.environ["SLURM_PROCID"])'), "a.sh": "srun -n 8 python train.py"},
            {**script('r = os.environ.get("RANK", os.environ.get("SLURM_PROCID"))'), "a.sh": TORCHRUN},
        ],
    ),
    # DeepSpeed 0.19.8 runtime/config.py: _batch_assertion.
    "deepspeed-batch-disagrees": (
        [
            {**job(BATCHES), "ds.json": '{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2}'},
            {
                **job(BATCHES),
                "ds.json": '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, '
                '"gradient_accumulation_steps": 2}',
            },
        ],
        [
            {**job(BATCHES), "ds.json": '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}'},
            {**job(BATCHES), "ds.json": '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2}'},
            {**job(BATCHES), "ds.json": "[1"},
            job(BATCHES),
        ],
    ),
    "ranks-started-twice": (
        [{**script("mp.spawn(f, nprocs=n)"), "a.sh": TORCHRUN}],
        [{**script("mp.spawn(f, nprocs=n)"), "a.sh": "python train.py"}],
    ),
}
CASES |= NUMBERS
for _rule, _wrong, _right in (
    ("node-variable-read-too-early", EARLY, IN_TIME),
    ("rendezvous-endpoint-own", AT_ITSELF, AT_THE_HEAD),
    ("several-worlds", MANY_WORLDS, ONE_WORLD),
):
    CASES[_rule] = ([*CASES[_rule][0], *_wrong], [*CASES[_rule][1], *_right])
CASES |= launch_cases.CASES
for _rule, (_wrong, _right) in (
    *launch_starters.CASES.items(),
    *launch_contradictions.CONTRADICTIONS.items(),
    *launch_places.PLACES.items(),
    *launch_given.GIVEN.items(),
    *launch_steps.STEPS.items(),
    *launch_alone.ALONE.items(),
    *launch_read.READ.items(),
    *launch_public.PUBLIC.items(),
):
    CASES[_rule] = tuple([*a, *b] for a, b in zip(CASES.get(_rule, ([], [])), (_wrong, _right), strict=True))
ALL = {*SCRIPT, *SHELL, *ACROSS, "script-not-readable"}


def test_every_case_of_a_text_is_one_that_some_finding_has() -> None:
    """A finding with a case that its rule's text lacks is a KeyError, which every example would show."""
    root = Path(lint.__file__).parent.parent
    source = "".join(path.read_text() for part in ("lint", "checks") for path in (root / part).glob("*.py"))
    cases = {(one.name, case) for one in PROBLEMS.values() for _, case, _ in one.parts if case}
    assert cases and [name for name in sorted(cases) if f'"{name[1]}"' not in source] == []
    why, fix = PROBLEMS["several-worlds"].of_case("fairseq")
    assert why.startswith("every node trains the same model") and "accelerate" not in why + fix


def test_every_fault_has_both_cases_and_a_text() -> None:
    assert set(CASES) == ALL, "CASES needs files with and without each fault"
    assert set(PROBLEMS) >= ALL


@pytest.mark.parametrize("rule", CASES)
def test_the_fault_is_found(rule: str) -> None:
    for files in CASES[rule][0]:
        findings = [f for f in lint.lint(files) if f.rule == rule]
        assert findings, files
        for finding in findings:
            path, _, line = finding.where.rpartition(":")
            assert path in files and 1 <= int(line) <= files[path].count("\n") + 1
            assert finding.found and finding.wanted and finding.why and finding.fix and finding.severity


@pytest.mark.parametrize("rule", CASES)
def test_what_is_fine_is_not_called_a_fault(rule: str) -> None:
    for files in CASES[rule][1]:
        assert rule not in names(files), files


@pytest.mark.parametrize("path", CLEAN, ids=lambda p: p.name)
def test_the_usual_patterns_of_training_scripts_give_no_finding(path: Path) -> None:
    assert [f"{f.where} {f.rule}: {f.found}" for f in lint.lint({str(path): path.read_text()})] == []


def test_a_clean_job_with_its_clean_scripts_gives_no_finding() -> None:
    files = {str(path): path.read_text() for path in CLEAN}
    assert len(files) == 11 and lint.lint(files) == []


# -- the five articles' own faults, in words of ours -------------------------------------------


def test_a_script_of_one_gpu_a_node_and_its_two_start_files() -> None:
    code = """
def work(rank, size):
    torch.cuda.set_device(rank)
    dist.init_process_group(backend="nccl", init_method="env://", rank=rank, world_size=size)
    ones = torch.ones(256, device=f"cuda:{rank}")
    dist.all_reduce(ones)
if __name__ == "__main__":
    work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
"""
    start = "# on {} ({}):\nexport MASTER_ADDR=172.20.170.63\nexport MASTER_PORT=29500  # a free one\n"
    start += "export WORLD_SIZE=2\nexport RANK={}\nexport NCCL_DEBUG=INFO\npython reduce.py\n"
    files = {
        "reduce.py": HEAD + code,
        "first.sh": start.format("one", "172.20.170.60", 0),
        "second.sh": start.format("two", "172.20.0.195", 1),
    }
    found = {(f.rule, f.where.split(":")[0]) for f in lint.lint(files)}
    assert found == {
        ("global-rank-as-device", "reduce.py"),
        ("head-is-elsewhere", "first.sh"),
        ("no-destroy-process-group", "reduce.py"),
        ("no-timeout-while-debugging", "reduce.py"),
        ("port-in-file", "first.sh"),
        ("port-in-file", "second.sh"),
    }
    device = only(files, "global-rank-as-device")
    assert device.severity == "error" and "also line" in device.found
    head = only(files, "head-is-elsewhere")
    assert "172.20.170.60" in head.found and "172.20.170.63" in head.found


def test_the_colossal_commands_with_slashes_and_the_habitual_port() -> None:
    text = """
source /opt/toolset/enable  // the newer compiler
# 90.91.33.64
torchrun --nproc_per_node=1 --nnodes=2 --node_rank=0 --master_addr="90.91.33.64" --master_port=29500 t.py -c c
# 90.91.33.65
torchrun --nproc_per_node=1 --nnodes=2 --node_rank=1 --master_addr="90.91.33.64" --master_port=29500 t.py -c c
colossalai run --nproc_per_node 1 --host a,b --master_addr a train.py -c ./ck // by name
"""
    found = [(f.rule, f.where) for f in lint.lint({"all.sh": text})]
    assert found == [
        ("slashes-are-no-comment", "all.sh:2"),
        ("slashes-are-no-comment", "all.sh:7"),
        ("port-in-file", "all.sh:4"),
    ]


def test_the_three_ways_to_start_and_their_faults() -> None:
    spawned = """
def worker(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.destroy_process_group()
def main(world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29500"
    mp.spawn(worker, args=(world_size,), nprocs=world_size, join=True)
if __name__ == "__main__":
    main(4)
"""
    launched = """
import argparse
def worker(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.destroy_process_group()
parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int)
worker(parser.parse_args().local_rank, int(os.environ["WORLD_SIZE"]))
"""
    run = 'def worker():\n    dist.init_process_group("gloo")\n    dist.destroy_process_group()\nworker()\n'
    assert names({"spawn.py": HEAD + spawned}) == {
        "master-address-in-code",
        "master-port-in-code",
        "spawn-count-in-code",
        "spawn-knows-one-node",
        "world-size-in-code",
    }
    assert names({"launch.py": HEAD + launched}) == {
        "local-rank-argument-expected",
        "local-rank-as-global-rank",
    }
    assert names({"run.py": HEAD + run}) == set()
    kinds = {text: lint.how_to_start(HEAD + text).launcher for text in (spawned, launched, run)}
    assert list(kinds.values()) == ["spawn", "launch", "torchrun"]


def test_a_docstring_cut_short_is_a_script_that_cannot_be_read() -> None:
    text = "'''\na test\n\n'''\npython -m torch.distributed.run test.py\n'''\nmore\n"
    assert only({"test.py": text}, "script-not-readable").where in ("test.py:5", "test.py:6")


# -- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import jax\njax.distributed.initialize()", ("jax", "jax", "")),
        ("mp.spawn(f, nprocs=2)", ("spawn", "spawn", "")),
        (ARGUMENT.format(spelling='"--local_rank"'), ("local-rank", "launch", "--local_rank")),
        (ARGUMENT.format(spelling='"--local-rank"'), ("local-rank", "launch", "--local-rank")),
        (
            "import deepspeed, argparse\np = argparse.ArgumentParser()\nos.environ['LOCAL_RANK']\n"
            "p.add_argument('--local_rank', required=True)",
            ("local-rank", "launch", "--local_rank"),
        ),
        ("import transformers", ("environment", "torchrun", "")),
        (INIT, ("environment", "torchrun", "")),
        (MESH, ("environment", "torchrun", "")),
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(m)", ("environment", "torchrun", "")),
        ("from trl import SFTTrainer", ("environment", "torchrun", "")),
        ("from composer import Trainer", ("environment", "torchrun", "")),
        ("import deepspeed\ndeepspeed.initialize()", ("environment", "torchrun", "")),
        ("from lightning.pytorch import Trainer\nTrainer()", ("environment", "torchrun", "")),
        ("from jax import distributed\ndistributed.initialize()", ("jax", "jax", "")),
        ("print('hello')", ("unknown", "torchrun", "")),
        ("def f(:", ("unknown", "torchrun", "")),
    ],
)
def test_a_script_says_how_it_wants_to_be_started(code: str, expected: tuple[str, str, str]) -> None:
    start = lint.how_to_start(HEAD + code)
    assert (start.kind, start.launcher, start.argument) == expected
    assert start.why


def test_a_device_mesh_starts_torch_distributed_and_chooses_the_gpu() -> None:
    assert names({"train.py": HEAD + MESH}) == {"no-destroy-process-group"}
    assert names(script(MESH)) == set()
    assert names(script(INIT + MESH)) == set()


def test_launch_lines_are_read_through_quotes_continuations_and_wrappers() -> None:
    text = """
cat <<EOF
torchrun --nnodes 9 not_this.py
EOF
N=2; srun -N2 --label bash -c 'exec torchrun \\
   --nnodes=$SLURM_NNODES train.py "a b"'
CUDA_VISIBLE_DEVICES=0 nohup env A=1 python3.11 -u -m torch.distributed.run --nnodes $N x.py --nnodes 7 &
/opt/bin/accelerate launch --multi_gpu y.py && python -c 'print(1)' ; python z.py
"""
    found = read("x.sh", text).launches
    assert [(one.launcher, one.script, one.line) for one in found] == [
        ("torchrun", "train.py", 5),
        ("torchrun", "x.py", 7),
        ("accelerate", "y.py", 8),
    ]
    assert found[0].srun and found[0].srun.option("-N") == "2"
    assert found[0].shown(found[0].option("nnodes")) == "$SLURM_NNODES"
    assert found[1].option("nnodes") == "2" and found[1].env["CUDA_VISIBLE_DEVICES"] == "0"


PIECES = [
    *"'\"\\\n `$()#&;|=-{}",
    "torchrun ",
    "srun ",
    "export A=",
    "<<EOF",
    "train.py",
    "if rank == 0:",
    "é\0",
]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_text_is_read_without_a_traceback(pieces: list[str]) -> None:
    text = "".join(pieces)
    for finding in lint.lint({"x.sh": text, "train.py": text}):
        assert finding.severity in ("error", "warning", "note")


def test_a_very_deep_script_is_said_to_be_unreadable() -> None:
    assert names({"train.py": "x = " + "(" * 5000 + ")" * 5000}) <= {"script-not-readable"}
    assert names({"train.py": "x = " + "-" * 100_000 + "1"}) <= {"script-not-readable"}


# -- the command -------------------------------------------------------------------------------


def ringup(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ringup", *words], capture_output=True, text=True)


def test_the_command_leaves_with_1_for_an_error_and_the_script_is_not_run(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(f"import os, torch\nopen({str(tmp_path / 'ran')!r}, 'w')\n" + GLOBAL)
    done = ringup("lint", str(bad), "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["schema"] == 1
    (finding,) = said["findings"]
    assert finding["rule"] == "global-rank-as-device" and finding["where"] == f"{bad}:3"
    assert set(finding) >= {"severity", "node", "found", "wanted", "why", "worked_around_by", "fix"}
    assert not (tmp_path / "ran").exists()


GLOBAL = 'torch.cuda.set_device(int(os.environ["RANK"]))\n'


def test_a_manifest_that_does_not_parse_is_said_to_be_unread(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: PyTorchJob\nmetadata:a\n  name: t\n")
    (tmp_path / "chart.yaml").write_text("kind: {{ .Values.kind }}\nmetadata:a\n  name: t\n")
    done = ringup("lint", str(tmp_path))
    assert "job.yaml:3  not read: not YAML" in done.stdout and "chart.yaml" not in done.stdout


def test_the_command_says_how_the_script_is_started(tmp_path: Path) -> None:
    done = ringup("lint", str(SCRIPTS / "clean_jax.py"))
    assert done.returncode == 0 and "--with jax" in done.stdout and "no problems found" in done.stdout
    missing = ringup("lint", str(tmp_path / "no.py"))
    assert missing.returncode == 2 and "No such file" in missing.stderr
    assert ringup("explain", "global-rank-as-device").returncode == 0


@pytest.mark.slow
def test_a_run_picks_what_the_script_asks_for_unless_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + SPAWN.format(rank="i", size="size", count="size", given="2"))
    words = [
        "run",
        "--local",
        "2",
        "--dry-run",
        "--nproc",
        "1",
        "--backend",
        "gloo",
        "--chdir",
        str(tmp_path),
    ]
    picked = ringup(*words, "--anyway", "--", "train.py")
    assert "--with spawn" in picked.stderr and "torch.distributed.run" not in picked.stdout, picked.stderr
    told = ringup(*words, "--anyway", "--with", "torchrun", "--", "train.py")
    assert "torch.distributed.run" in told.stdout and "--with torchrun cannot start it" in told.stderr


def test_workers_are_judged_by_the_processors_of_the_node_they_run_on() -> None:
    written = lint.workers(HEAD + LOADER.format(4) + LOADER.format(8))
    assert written == ("script:5", 8)
    assert lint.too_many_workers(written, "n1", 2, 16.0) == [] == lint.too_many_workers(written, "n1", 2, 0)
    (finding,) = lint.too_many_workers(written, "n1", 2, 12.5)
    assert (finding.severity, finding.node) == ("warning", "n1")
    assert "2 ranks with 8 workers each on 12.5 processors" in finding.found
    assert lint.workers(HEAD + LOADER.format("n"))[1] == 0 == lint.workers("def f(:")[1]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "if dist.get_rank() == 1:\n    exit(7)\ndist.barrier()",
            "`dist.get_rank() == 1` in line 4, where the others leave",
        ),
        ("if local_rank == 0:\n    dist.barrier()", "`local_rank == 0` in line 4"),
    ],
)
def test_which_ranks_stay_away_is_shown_and_not_guessed(code: str, said: str) -> None:
    found = only(script(code), "collective-on-some-ranks").found
    assert found == f"only some ranks reach barrier: {said}"


def test_a_script_that_cannot_be_read_gets_no_launcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text("def f(:")
    assert command_line.dispatch(["lint", str(tmp_path / "bad.py")]) == 1
    said = capsys.readouterr().out
    assert "script-not-readable" in said and "--with" not in said


def test_a_digit_that_is_no_number_is_no_count(tmp_path: Path) -> None:
    job = tmp_path / "job.sbatch"
    job.write_text(
        "#!/bin/bash\n#SBATCH --nodes=\u00b2 --ntasks=\u00b2 --ntasks-per-node=\u00b2\n"
        "srun torchrun --nnodes=\u00b2 --nproc-per-node=\u00b2 --node-rank=\u00b2 train.py\n"
    )
    done = subprocess.run([sys.executable, "-m", "ringup", "lint", str(job)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "--nnodes is '\u00b2'" in done.stdout


def test_a_function_that_returns_its_own_call_many_times_is_read_at_once() -> None:
    own = "".join(f"    if n == {k}:\n        return f(n - {k})\n" for k in range(1, 9))
    assert lint.lint(script(f"def f(n):\n{own}    return 1, 2\nrank, size = f(9)\n")) == []
