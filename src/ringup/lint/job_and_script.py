"""Launches whose script does what their configuration does not allow."""

from __future__ import annotations

import ast
import re

from ringup.launchfiles.model import TORCH, Launch
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.rule import SHELL, Found, fault
from ringup.lint.source import Call, Script, read

_TRAINS = re.compile(r"\b(?:Trainer|SFTTrainer|Accelerator)\(|\baccelerator\.prepare\(")
_BY_MAP = re.compile(r"device_map *= *[\"']auto[\"']")
_LORA = re.compile(r"\b(?:LoraConfig|get_peft_model)\(")
_OWN_OPTIMIZER = re.compile(r"\b(?:torch\.)?optim\.\w{1,40}\(")


@fault("ranks-have-no-address", SHELL, each="launches")
def ranks_have_no_address(job: JobFile, launch: Launch) -> Found:
    """
    detectron2's `launch` is called for several machines without an address.

    Why: `dist_url` is None then, and each process ends with an AttributeError; without `machine_rank` each
    machine is number 0 (`detectron2/engine/launch.py`).

    Fix: `dist_url="tcp://FIRST:PORT"` and `machine_rank=int(os.environ["SLURM_NODEID"])`.
    """
    text = text_of(job, launch.script)
    if not re.search(r"(?m)^from detectron2\.engine(?:\.launch)? import .{0,200}\blaunch\b", text):
        return
    for call in re.findall(r"(?m)^[ \t]*launch\(([^()]{0,400}(?:\([^()]{0,200}\)[^()]{0,400}){0,4})\)", text):
        count = re.search(r"\bnum_machines *= *(\d{1,4})\b", call)
        if count and int(count[1]) > 1 and "dist_url" not in call and "*" not in call:
            found = f"launch(num_machines={count[1]}) without dist_url"
            yield launch.line, found, "dist_url= and machine_rank="


_NODE_RANK = re.compile(r"os\.environ\[[\"']NODE_RANK[\"']\]")


@fault("variable-not-of-launcher", SHELL, each="launches")
def variable_not_of_launcher(job: JobFile, launch: Launch) -> Found:
    """
    The script needs NODE_RANK in its environment, and the launcher sets none.

    Why: torchrun and torch.distributed.launch set GROUP_RANK, RANK and LOCAL_RANK (`elastic/agent/server`,
    torch 2.13); a script that reads `os.environ["NODE_RANK"]` ends with a KeyError.

    Fix: `export NODE_RANK=0` on each node with its number, or GROUP_RANK in the script.
    """
    is_set = "NODE_RANK" in launch.env or "NODE_RANK" in job.text or launch.pod is not None
    if launch.launcher in TORCH and not is_set and _NODE_RANK.search(text_of(job, launch.script)):
        yield launch.line, "the script reads NODE_RANK, which is not set", "GROUP_RANK"


@fault("script-unfit-for-configuration", SHELL, each="launches")
def script_unfit_for_configuration(job: JobFile, launch: Launch) -> Found:
    """
    The script does what the configuration of its launcher does not allow.

    Why: accelerate trains no model with `device_map="auto"` in several processes; FSDP without
    `use_orig_params` takes no layer in which LoRA leaves frozen weights; DeepSpeed with `offload_optimizer`
    takes no optimizer of torch, and without a Trainer nobody puts a number in the place of "auto".
    Sources: accelerate 1.15 `accelerator.py`, torch 2.13 `fsdp/_flat_param.py`, DeepSpeed 0.19.8
    `runtime/engine.py`.

    Fix: use no device_map; `fsdp_use_orig_params: true`; `deepspeed.ops.adam.DeepSpeedCPUAdam`; numbers.
    """
    text = text_of(job, launch.script)
    ranks = launch.world_size or launch.ranks_per_node or 1
    if _BY_MAP.search(text) and _TRAINS.search(text) and ranks > 1 and "LOCAL_RANK" not in text:
        why = 'accelerate trains no model with device_map="auto" in several processes (`accelerator.py`)'
        found = f'device_map="auto" in each of {ranks} processes'
        yield launch.line, found, "no device_map", why, "leave device_map out"
    config = launch.config
    is_split = config.get("fsdp_use_orig_params", "").lower() == "false" and config.get("fsdp_version") != "2"
    # transformers' Trainer sets peft's own policy (`integrations/fsdp.py`).
    if is_split and _LORA.search(text) and not re.search("fsdp_auto_wrap_policy|Trainer\\(", text):
        why = "a flat parameter has no frozen weights among others: torch's `fsdp/_flat_param.py`"
        found, wanted = "LoRA, and fsdp_use_orig_params: false", "fsdp_use_orig_params: true"
        yield launch.line, found, wanted, why, wanted
    is_flat = config.get("distributed_type") == "FSDP" and config.get("fsdp_version") != "2"
    if is_flat and re.search(r"load_in_4bit *= *True", text) and "quant_storage" not in text:
        why = 'uint8 holds 4-bit weights: "Cannot flatten integer dtype tensors" (bitsandbytes, FSDP-QLoRA)'
        found, wanted = "load_in_4bit without bnb_4bit_quant_storage", "bnb_4bit_quant_storage=bfloat16"
        yield launch.line, found, wanted, why, wanted
    yield from _with_deepspeed(job, launch, text)
    yield from _with_accelerate(job, launch, text)


def _with_accelerate(job: JobFile, launch: Launch, text: str) -> Found:
    name = launch.config.get("deepspeed_config_file", "") if launch.launcher == "accelerate" else ""
    has_own = re.search(r'(?m)^ {0,8}"optimizer" *:', text_of(job, name)) if name else None
    if has_own and ".prepare(" in text and _OWN_OPTIMIZER.search(text) and "DummyOptim" not in text:
        why = "accelerate takes the optimizer of the file or of the code, not both (`accelerator.py`, 1.15)"
        found, fix = "an optimizer, and one in DeepSpeed's file", "accelerate.utils.DummyOptim"
        yield launch.line, found, "one of them", why, fix


def passes_unchanged(text: str, name: str) -> bool:
    """Whether a script surely passes the file `name`, or its content, to deepspeed.initialize() unchanged."""
    try:
        script = read("", text)
    except SyntaxError:
        return False
    calls = script.named("deepspeed.initialize")
    return bool(calls) and all(_is_unchanged(script, call, name) for call in calls)


def _is_unchanged(script: Script, call: Call, name: str) -> bool:
    if any(isinstance(a, ast.Starred) for a in call.node.args) or any(
        k.arg is None for k in call.node.keywords
    ):
        return False
    given = call.argument("config", 10) or call.argument("config_params", 12)
    changed = {
        ast.unparse(n) for n in script.nodes if isinstance(getattr(n, "ctx", None), ast.Store | ast.Del)
    }
    if given is None:
        return not any(one.endswith(".deepspeed_config") for one in changed)
    if isinstance(given, ast.Constant):
        return str(given.value).rpartition("/")[2] == name.rpartition("/")[2]
    if isinstance(given, ast.Attribute):
        own = ast.unparse(given)
        return not any(one == own or one.startswith((f"{own}[", f"{own}.")) for one in changed)
    return isinstance(given, ast.Name) and _is_path_or_content(script, given)


def _is_path_or_content(script: Script, given: ast.Name) -> bool:
    """Whether a variable is a path or loaded JSON, and is used in no other place."""
    uses = [n for n in script.of_kind(ast.Name) if n.id == given.id and n is not given]
    if len(uses) != 1 or not isinstance(assigned := script.parents.get(uses[0]), ast.Assign):
        return False
    value = assigned.value
    if isinstance(value, ast.Call):
        return script.dotted(value.func) in ("json.load", "json.loads", "hjson.load", "hjson.loads")
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _with_deepspeed(job: JobFile, launch: Launch, text: str) -> Found:
    if "deepspeed.initialize(" not in text or re.search(r"Trainer\(|\bAccelerator\(", text):
        return
    written = re.findall(r"[\"']([\w./-]{1,80}\.json)[\"']", text)
    named = launch.arguments.get("deepspeed-config") or "".join(written[:1])
    config = text_of(job, named)
    is_offloaded = re.search(r'"offload_optimizer"\s*:\s*\{[^{}]{0,400}"device"\s*:\s*"(?:cpu|nvme)"', config)
    is_forced = "zero_force_ds_cpu_optimizer" in config or "DeepSpeedCPUAdam" in text
    if is_offloaded and not is_forced and _OWN_OPTIMIZER.search(text) and "optimizer=" in text:
        why = "DeepSpeed with offload_optimizer takes its own optimizers alone (`runtime/engine.py`)"
        found, fix = "an optimizer of torch, and offload_optimizer", "deepspeed.ops.adam.DeepSpeedCPUAdam"
        yield launch.line, found, "DeepSpeedCPUAdam", why, fix
    stage = re.search(r'"stage"\s*:\s*([1-3])', config)
    if stage and stage[1] != "1" and re.search(r"\bPipelineModule\(", text):
        why = "ZeRO-2 and ZeRO-3 split gradients, which a pipeline adds up: `runtime/pipe/engine.py`"
        yield launch.line, f"PipelineModule, and stage {stage[1]}", "stage 1", why, '"stage": 1'
    other = re.search(r"\boptim\.(SGD|RMSprop|Adadelta|Adamax|NAdam|RAdam|Rprop|ASGD|LBFGS)\(", text)
    if stage and other and "optimizer=" in text and "zero_allow_untested_optimizer" not in config:
        why = "ZeRO takes Adam, AdamW, Adagrad and Lion; others only on request (`runtime/zero/utils.py`)"
        found, fix = f"optim.{other[1]} at stage {stage[1]}", '"zero_allow_untested_optimizer": true'
        yield launch.line, found, '"zero_allow_untested_optimizer": true', why, fix
    if re.search(r':\s*"auto"', config) and "autotuning" not in config and passes_unchanged(text, named):
        why = 'DeepSpeed itself does not know "auto": transformers and accelerate replace it'
        found, fix = 'values "auto", and a script without a Trainer', "write the numbers"
        yield launch.line, found, "numbers", why, fix
