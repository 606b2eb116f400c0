"""Sizes of the training that do not divide, and settings of DeepSpeed and FSDP that contradict others."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ringup.launchfiles.manifests import listed, pairs, scalar, value_at
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import Launch
from ringup.lint.job_and_script import passes_unchanged
from ringup.lint.job_environment import file_at_hand, text_of
from ringup.lint.job_file import JobFile
from ringup.lint.rule import SHELL, Found, fault
from ringup.rules import Fix
from ringup.units import lines_of, plural, printable

_NUMBERS = {
    "train_micro_batch_size_per_gpu": "per-device-train-batch-size",
    "gradient_accumulation_steps": "gradient-accumulation-steps",
    "gradient_clipping": "max-grad-norm",
}
"""Key of DeepSpeed's configuration -> the Trainer's argument."""


@fault("deepspeed-config-disagrees", SHELL, each="launches")
def deepspeed_config_disagrees(job: JobFile, launch: Launch) -> Found:
    """
    A value of DeepSpeed's configuration is not the one that the Trainer is given.

    Why: transformers compares them and ends with "Please correct the following DeepSpeed config values that
    mismatch TrainingArguments values" (`integrations/deepspeed.py`).

    Fix: write "auto" in DeepSpeed's file.
    """
    name = launch.arguments.get("deepspeed", "")
    if "per-device-train-batch-size" not in launch.arguments or not name.endswith(".json"):
        return
    given = _mapping(file_at_hand(job, name))
    shown = printable(name.rpartition("/")[2], 60)
    for kind, other in (("fp16", "bf16"), ("bf16", "fp16")):
        part = given.get(kind)
        is_on = isinstance(part, dict) and part.get("enabled") is True
        asked = launch.arguments.get(other, "false").lower() in ("", "true")
        if is_on and asked and kind not in launch.arguments:
            yield launch.line, f"--{other}, and {shown} has {kind} enabled", '"auto"'
    whole, world = given.get("train_batch_size"), launch.world_size or 0
    batch = launch.number(launch.arguments["per-device-train-batch-size"]) or 0
    each = batch * (launch.number(launch.arguments.get("gradient-accumulation-steps", "1")) or 0)
    if type(whole) is int and each * world not in (0, whole):
        found = f"{shown} has train_batch_size {whole}, and {each} x {world} ranks are {each * world}"
        yield launch.line, found, '"auto"'
    elif type(whole) is int and not world and each and whole % each:
        found = f"{shown}: train_batch_size {whole} is not a multiple of {each}, which one rank takes a step"
        yield launch.line, found, '"auto"'
    for key, argument in _NUMBERS.items():
        value, text = given.get(key), launch.arguments.get(argument, "")
        is_number = isinstance(value, int | float) and re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text)
        if is_number and float(text) != value:
            found = f"--{argument.replace('-', '_')} {text}, and {shown} has {key} {value}"
            yield launch.line, found, '"auto"'


@fault("deepspeed-config-wrong", SHELL)
def deepspeed_config_wrong(job: JobFile) -> Found:
    """
    DeepSpeed refuses its configuration.

    Why: fp16 and bf16 are both enabled; the stage is above 3; a key is misspelt; or no batch size is given
    where the script passes the file itself (`runtime/config.py`, 0.19.8).  DeepSpeed reads comments and a
    trailing comma (hjson); transformers and accelerate read strict JSON (`accelerate/utils/deepspeed.py`).

    Fix: set one of fp16 and bf16; a stage from 0 to 3; train_micro_batch_size_per_gpu; for transformers and
    accelerate JSON without comments and trailing commas.
    """
    seen = set()
    if any(one.launcher == "deepspeed" and one.has("hostfile") for one in job.launches):
        lines = lines_of(text_of(job, ".deepspeed_env"))
        if bad := next((number for number, line in enumerate(lines, 1) if "=" not in line), 0):
            why = "each line is split at its `=` (`launcher/runner.py`); comments and empty lines have none"
            found = f".deepspeed_env, line {bad}: no NAME=VALUE, and DeepSpeed ends with a ValueError"
            yield job.launches[0].line, found, "NAME=VALUE on every line", why, "leave this line out"
    for launch in job.launches:
        own = launch.arguments.get("deepspeed-config", "")
        name = own or launch.arguments.get("deepspeed", "")
        text = file_at_hand(job, name) if name.endswith(".json") and name not in seen else None
        seen.add(name)
        if text is None or has_mark(text):
            continue
        shown = printable(name.rpartition("/")[2], 60)
        try:
            given = json.loads(text)
        except RecursionError:
            continue
        except ValueError as error:
            at = getattr(error, "lineno", 1)
            if not _reads_strictly(job, launch):
                continue
            yield launch.line, f"{shown} is not JSON, line {at}: {printable(str(error), 60)}", "JSON"
            continue
        parts = given if isinstance(given, dict) else {}
        on = [n for n in ("fp16", "bf16", "bfloat16") if _value(parts, n, "enabled") is True]
        stage = _value(parts, "zero_optimization", "stage")
        if len(on) > 1:
            yield launch.line, f"{shown} enables {' and '.join(on)}", "one of them"
        if isinstance(stage, int) and stage > 3:
            yield launch.line, f"{shown}: stage {stage}", "a stage from 0 to 3"
        for name, near in _misspelt(parts):
            yield launch.line, f"{shown}: DeepSpeed knows no {printable(name, 60)}", near
        offload = _value(parts, "zero_optimization", "offload_param", "device")
        if isinstance(stage, int) and stage < 3 and offload in ("cpu", "nvme"):
            found, why = f"{shown}: offload_param at stage {stage}", "only stage 3 offloads parameters"
            yield job.finding(launch.line, found, "stage 3", severity="warning", why=why, fix=Fix("stage 3"))
        has_size = parts.keys() & {"train_batch_size", "train_micro_batch_size_per_gpu"}
        code = text_of(job, launch.script)
        is_filled = "deepspeed.initialize(" in code and not passes_unchanged(code, name)
        if own and parts and not has_size and not is_filled:
            yield launch.line, f"{shown} has no batch size", "train_micro_batch_size_per_gpu"


_STRICT = re.compile(
    r"(?m)^[ \t]*(?:from|import)[ \t]+(?:accelerate|transformers|trl)\b|\b\w{0,20}Trainer\(|\bAccelerator\("
)


def _reads_strictly(job: JobFile, launch: Launch) -> bool:
    """Whether transformers or accelerate surely reads DeepSpeed's file, with `json.load`."""
    if "deepspeed-config" in launch.arguments:
        return False  # of deepspeed.add_config_arguments(): for deepspeed.initialize()
    text = text_of(job, launch.script)
    is_by_trainer = "per-device-train-batch-size" in launch.arguments or bool(_STRICT.search(text))
    return is_by_trainer and not re.search(r"\bdeepspeed\.initialize\(|\bhjson\b|\bjson5\b", text)


_OF_CONFIG = """
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping optimizer
scheduler zero_optimization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer steps_per_print
activation_checkpointing wall_clock_breakdown communication_data_type prescale_gradients flops_profiler
"""
_OF_ZERO = """
stage contiguous_gradients reduce_scatter reduce_bucket_size allgather_partitions allgather_bucket_size
overlap_comm load_from_fp32_weights elastic_checkpoint offload_param offload_optimizer sub_group_size
cpu_offload_param cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size param_persistence_threshold
model_persistence_threshold max_live_parameters max_reuse_distance gather_16bit_weights_on_model_save
gather_fp16_weights_on_model_save ignore_unused_parameters round_robin_gradients zero_hpz_partition_size
zero_quantized_weights zero_quantized_gradients mics_shard_size mics_hierarchical_params_gather
use_multi_rank_bucket_allreduce memory_efficient_linear pipeline_loading_checkpoint override_module_apply
"""


def _misspelt(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, the known one like it) of DeepSpeed 0.19.8 (`runtime/zero/config.py` forbids others)."""
    known = _OF_ZERO.split()
    zero = parts.get("zero_optimization")
    listed = (zero if isinstance(zero, dict) else {}, [*known, *(f"stage3_{name}" for name in known)])
    for given, names in ((parts, _OF_CONFIG.split()), listed):
        for key in [*given][:200]:
            near = difflib.get_close_matches(key, names, 1, 0.9) if key not in names else []
            if near:
                yield key, near[0]


def _value(parts: Mapping[str, Any], *keys: str) -> Any:
    """The value at the keys of nested mappings; None for none."""
    node: Any = parts
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


@fault("trainer-refuses-arguments", SHELL, each="launches")
def trainer_refuses_arguments(job: JobFile, launch: Launch) -> Found:
    """
    Arguments of the Trainer that it does not take together.

    Why: transformers ends with "At most one of fp16 and bf16 can be True", and `load_best_model_at_end` needs
    the same strategy for saving and evaluating (`training_args.py`, 5.17).

    Fix: set one of fp16 and bf16; `--save_strategy` equal to `--eval_strategy`.
    """
    given = launch.arguments
    if "per-device-train-batch-size" not in given:
        return
    for option, first, second in zip(words := launch.start.arguments, words[1:], words[2:], strict=False):
        if option == "--fsdp" and first.isidentifier() and second in ("auto_wrap", "offload"):
            found = f"--fsdp {printable(first, 40)}, and {second} is a word of its own"
            wanted = f'--fsdp "{printable(first, 40)} {second}"'
            why = 'its value is one word: "Some specified arguments are not used" (`hf_argparser.py`)'
            yield launch.line, found, wanted, why, wanted
    if _is_on(given, "fp16") and _is_on(given, "bf16"):
        yield launch.line, "--fp16 and --bf16", "one of them"
    is_twice = launch.config.get("fsdp_activation_checkpointing", "").lower() == "true"
    if is_twice and _is_on(given, "gradient-checkpointing"):
        yield launch.line, "--gradient_checkpointing beside fsdp_activation_checkpointing", "one of them"
    saved = given.get("save-strategy", "steps")
    evaluated = given.get("eval-strategy") or given.get("evaluation-strategy") or ""
    is_written = saved.isalpha() and evaluated.isalpha() and not launch.is_opaque
    if _is_on(given, "load-best-model-at-end") and is_written and saved not in ("best", evaluated):
        found = f"--load_best_model_at_end, eval_strategy {evaluated}, and save_strategy {saved}"
        wanted = f"--save_strategy {evaluated}" if evaluated != "no" else "an eval_strategy"
        yield launch.line, found, wanted


def _is_on(given: Mapping[str, str], name: str) -> bool:
    return name in given and given[name].lower() in ("", "true", "1")


def _mapping(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_LAYERS = {
    "BertLayer": "bert",
    "BloomBlock": "bloom bloomz",
    "CodeGenBlock": "codegen",
    "FalconDecoderLayer": "falcon",
    "GLMBlock": "chatglm chatglm2 chatglm3",
    "GPT2Block": "gpt2",
    "GPTBigCodeBlock": "starcoder santacoder",
    "GPTJBlock": "gpt-j",
    "GPTNeoBlock": "gpt-neo",
    "GPTNeoXLayer": "gpt-neox pythia",
    "GemmaDecoderLayer": "gemma",
    "LlamaDecoderLayer": "llama codellama tinyllama vicuna",
    "MistralDecoderLayer": "mistral",
    "MixtralDecoderLayer": "mixtral",
    "OPTDecoderLayer": "opt",
    "Phi3DecoderLayer": "phi-3",
    "Qwen2DecoderLayer": "qwen2 qwen1.5",
    "Qwen3DecoderLayer": "qwen3",
    "RobertaLayer": "roberta",
    "Starcoder2DecoderLayer": "starcoder2",
    "T5Block": "t5",
    "XLMRobertaLayer": "xlm-roberta bge-m3 multilingual-e5",
}
"""Layer of transformers 5.17 (`_no_split_modules`), and THUDM's -> parts of its models' names."""
_LAYER_OF = {model: layer for layer, models in _LAYERS.items() for model in models.split()}
_BY_NAME = "|".join(map(re.escape, sorted(_LAYER_OF, key=len, reverse=True)))
_MODELS = re.compile(rf"(?<![a-z])({_BY_NAME})(?![a-z])", re.IGNORECASE)
_LOADED = re.compile(
    r"(?:from_pretrained\(\s{0,40}|--(?:model_name_or_path|base_model|model_path|model_id)[= \t]{1,40})"
    r"[\"']?([\w./-]{1,120})"
)
_LAYER_NAMED = re.compile(r"(?m)^ {1,20}fsdp_transformer_layer_cls_to_wrap: *[\"']?(\w{1,60})")


@fault("fsdp-layer-unknown", SHELL)
def fsdp_layer_unknown(job: JobFile) -> Found:
    """
    FSDP's configuration names a layer that the model does not have.

    Why: accelerate ends with "Could not find the transformer layer class to wrap in the model"
    (`utils/dataclasses.py`).

    Fix: name the model's own layer, or leave the name out.
    """
    given = {one.line: one.arguments.get("fsdp-transformer-layer-cls-to-wrap", "") for one in job.launches}
    for one in job.launches:
        named = _LAYER_NAMED.search(text_of(job, one.option("config-file")))
        given[one.line] = given[one.line] or (named[1] if named else "")
    for document in job.job.documents:
        own = dict(pairs(dict(pairs(document)).get("fsdp_config")))
        if (node := own.get("fsdp_transformer_layer_cls_to_wrap")) is not None:
            given[node.start_mark.line + 1] = scalar(node)
            if several := [scalar(one) for one in listed(node)]:
                found = "a list: accelerate makes a text with brackets of it, and finds no such layer"
                yield node, found, ",".join(several)
        is_efficient = scalar(own.get("fsdp_cpu_ram_efficient_loading")).lower() == "true"
        sync, is_fsdp = own.get("fsdp_sync_module_states"), value_at(document, "distributed_type") == "FSDP"
        if is_fsdp and is_efficient and sync is not None and scalar(sync).lower() == "false":
            found = "fsdp_cpu_ram_efficient_loading without fsdp_sync_module_states: accelerate refuses it"
            yield sync, found, "fsdp_sync_module_states: true"
    texts = [job.text, *job.others.values()] if any(given.values()) else []
    names = {name for text in texts for name in _LOADED.findall(text)}
    models = {match[1].lower() for name in names for match in _MODELS.finditer(name.rpartition("/")[2])}
    fitting = {_LAYER_OF[model] for model in models}
    for line, layer in given.items():
        spelt = next((one for one in _LAYERS if one.lower() == layer.lower() != one), layer)
        if layer not in _LAYERS and spelt in _LAYERS:
            yield line, f"{layer}: capital and small letters count", spelt
        elif layer in _LAYERS and len(fitting) == 1 and layer not in fitting:
            yield line, f"{layer}, and the model is {', '.join(sorted(models))}", fitting.pop()


_ONE_BY_DEFAULT = re.compile(r"\$\{\w{0,30}(?:NODES|NODE_COUNT):-[\"']?1[\"']?\}")


@fault("parallel-sizes-do-not-divide", SHELL, each="launches")
def parallel_sizes_do_not_divide(job: JobFile, launch: Launch) -> Found:
    yield from _of_torchtitan(job, launch)
    is_default = launch.nnodes == 1 and bool(_ONE_BY_DEFAULT.search(job.text))
    given = {n: launch.number(v) for n, v in launch.arguments.items()}
    actors = (given.get("actor-num-nodes") or 0) * (given.get("actor-num-gpus-per-node") or 0)
    given["ranks"] = launch.world_size or actors or None
    is_swift = launch.launcher == "swift" or launch.module.startswith("swift.cli.")
    of_experts = 1 if is_swift else given.get("tensor-model-parallel-size")
    given.setdefault("expert-tensor-parallel-size", of_experts)
    if (
        given.keys() >= {"num-layers", "hidden-size", "micro-batch-size", "global-batch-size"}
        and not is_swift
    ):
        given.setdefault("tensor-model-parallel-size", 1)  # Megatron's default
    for most, least in _NOT_BELOW:
        high, low = given.get(most), given.get(least)
        is_other = "micro-batch-size" not in given and "." not in most  # not Megatron
        is_other |= f"{least.rpartition('.')[0]}.use-dynamic-bsz" in given
        if high and low and high < low and not is_other:
            yield launch.line, f"{_shown(given, most)}, and {_shown(given, least)}", f"{low} or more"
    for whole, by, unless in _DIVIDED:
        left, right = _product(given, whole), _product(given, by)
        is_apart = unless is not None and any(map(unless.search, given))
        of_ranks = whole == "ranks" and not right % (left or 1)
        may_grow = is_default and (of_ranks or right == launch.world_size)
        if left and right and left % right and not (is_apart or may_grow):
            yield launch.line, f"{_shown(given, whole)}, and {_shown(given, by)}", f"a multiple of {right}"
            break


_DEGREES = (
    *("data_parallel_replicate", "data_parallel_shard"),
    *("tensor_parallel", "pipeline_parallel", "context_parallel"),
)


def _of_torchtitan(job: JobFile, launch: Launch) -> Found:
    name, world = launch.arguments.get("job.config-file", ""), launch.world_size
    if not launch.module.startswith("torchtitan") or not world:
        return
    text = text_of(job, name)
    set_there = dict(re.findall(r"(?m)^[ \t]*(\w{1,60})_degree[ \t]*=[ \t]*(-?\d{1,6})", text))
    degrees = {}
    for degree in _DEGREES:
        own = launch.arguments.get(f"parallelism.{degree.replace('_', '-')}-degree")
        written = own or set_there.get(degree, "-1" if degree == "data_parallel_shard" else "1")
        if not re.fullmatch(r"-?\d{1,6}", written):
            return
        degrees[degree] = int(written)
    product = math.prod(n for n in degrees.values() if n > 0)
    is_open = any(n < 0 for n in degrees.values())
    if text and product and (world % product if is_open else world != product):
        shown = " x ".join(f"{name} {n}" for name, n in degrees.items() if n not in (1, -1))
        wanted = f"a divisor of {world}" if is_open else f"degrees whose product is {world}"
        yield launch.line, f"{shown} = {product}, and the world has {plural(world, 'rank')}", wanted


def _product(given: Mapping[str, int | None], names: str) -> int:
    """0 if a size is missing or unknown; one with `?` may be missing."""
    made = 1
    for name in names.split():
        made *= given.get(name.rstrip("?"), 1 if name.endswith("?") else 0) or 0
    return made


def _shown(given: Mapping[str, int | None], names: str) -> str:
    known = [(n, given[n]) for n in names.replace("?", "").split() if n in given]
    parts = [f"{n.rpartition('.')[2]} {size}" for n, size in known if size != 1 or n == known[0][0]]
    return " x ".join(parts) + (f" = {_product(given, names)}" if len(parts) > 1 else "")


_MODEL = "tensor-model-parallel-size pipeline-model-parallel-size? context-parallel-size?"
_EXPERTS = "expert-model-parallel-size expert-tensor-parallel-size pipeline-model-parallel-size?"
_UNEVEN = re.compile(
    "decoder-(?:first|last)-|pipeline-model-parallel-layout|account-for-|encoder-num|standalone-embedding"
    "|custom-pipeline|schedule-method|pp-partition-method|hybrid-|^deepspeed$"
)
_GPUS = "trainer.nnodes? trainer.n-gpus-per-node"
_NOT_BELOW = (
    # Megatron: training/arguments.py; verl: workers/config/actor.py
    ("max-position-embeddings", "seq-length"),
    ("data.train-batch-size", "actor-rollout-ref.actor.ppo-mini-batch-size"),
)
_MEGATRON = re.compile(r"\.(?:strategy|megatron)")
_SPLIT = re.compile("ring-attn-size|ds-tensor-parallel-size")
_DIVIDED = (
    # Megatron: training/arguments.py, transformer_config.py, moe_layer.py, num_microbatches_calculator.py
    ("ranks", _MODEL, None),
    ("ranks", _EXPERTS, None),
    ("num-attention-heads", "tensor-model-parallel-size", None),
    ("num-experts", "expert-model-parallel-size", None),
    ("num-layers", "pipeline-model-parallel-size", _UNEVEN),
    (f"global-batch-size {_MODEL}", "micro-batch-size ranks", re.compile("ds-sequence-parallel")),
    # verl: workers/fsdp_workers.py, utils/config.py; EasyR1: workers/fsdp_workers.py, trainer/ray_trainer.py
    (_GPUS, "actor-rollout-ref.rollout.tensor-model-parallel-size", None),
    (_GPUS, "worker.rollout.tensor-parallel-size", None),
    ("data.train-batch-size actor-rollout-ref.rollout.n?", _GPUS, _MEGATRON),
    ("data.rollout-batch-size", "worker.actor.global-batch-size", None),
    # OpenRLHF: utils/deepspeed/deepspeed.py
    ("train-batch-size", "micro-train-batch-size ranks", _SPLIT),
)
"""(sizes, sizes whose product divides that of the first, options that make it otherwise)."""
