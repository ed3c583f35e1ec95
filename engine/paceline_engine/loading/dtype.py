"""What type a model computes in. Pure functions only; `dtype_trial` measures for them."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16"]
DtypeSetting = Literal["auto", "float32", "float16", "bfloat16"]

# bfloat16 keeps 8 bits of precision: a smaller speed-up is not worth losing the other 16.
_WORTH_IT = 1.1
# INT8 and FP8 weights have lost more precision already. And bfloat16 helps where this trial does
# not look: it halves the KV cache, the embedding and the head.
_WORTH_IT_QUANTIZED = 1.0
# Serving needs decodes and prompts, so neither may slow down much for the other. Less than
# what two trials of the same products differ by on a busy machine would decide by chance.
_MAY_LOSE = 0.85


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """Seconds of one layer's product for few, some and many tokens (`dtype_trial.ROWS`)."""

    one_s: float
    batch_s: float
    prompt_s: float


@dataclass(frozen=True, slots=True)
class Trial:
    """The same products in both types, by the ops that would serve."""

    float32: ProductTimes
    bfloat16: ProductTimes
    is_quantized: bool = False
    """The weights are of a byte each in both."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What decides before anything is measured."""

    instructions: str | None
    """Name of its instructions for bfloat16; None where it has none."""
    has_ops: bool
    """The ops between products are as good in bfloat16 as in float32."""


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """The type, and why it is that one."""

    dtype: Dtype
    reason: str
    remark: str = ""
    """What a person should know, in a sentence."""

    @property
    def sentence(self) -> str:
        """Describe the type and the reason, for the log."""
        return f"{self.dtype}: {self.reason}"


def dtype_of_gpu(asked: DtypeSetting) -> DtypeChoice:
    """Choose on a GPU: `auto` is bfloat16, which every GPU that can serve multiplies fastest."""
    if asked != "auto":
        return DtypeChoice(asked, _AS_ASKED)
    return DtypeChoice("bfloat16", "the GPU's tensor cores multiply it")


def dtype_of_cpu(
    asked: DtypeSetting, processor: Processor, measure: Callable[[], Trial]
) -> DtypeChoice:
    """Choose on a CPU; `measure` is called only where the answer depends on it."""
    if asked != "auto":
        return DtypeChoice(asked, _AS_ASKED, _remark(asked, processor))
    if processor.instructions is None:
        return DtypeChoice("float32", "the processor has no instructions for bfloat16")
    if not processor.has_ops:
        return DtypeChoice(
            "float32",
            f"the processor has {processor.instructions}, but the compiled ops serve float32 alone",
        )
    return judge(measure(), processor.instructions)


def judge(trial: Trial, instructions: str) -> DtypeChoice:
    """Choose bfloat16 where it measured faster."""
    ratios = (
        trial.float32.one_s / trial.bfloat16.one_s,
        trial.float32.batch_s / trial.bfloat16.batch_s,
        trial.float32.prompt_s / trial.bfloat16.prompt_s,
    )
    mean = math.prod(ratios) ** (1 / len(ratios))
    one, batch, prompt = (f"{ratio:.1f}" for ratio in ratios)
    measured = (
        f"measured {mean:.1f} times as fast as float32 ({one} times for one token, {batch} for a "
        f"batch, {prompt} for a prompt), with {instructions}"
    )
    worth_it = _WORTH_IT_QUANTIZED if trial.is_quantized else _WORTH_IT
    if mean >= worth_it and min(ratios) >= _MAY_LOSE:
        return DtypeChoice("bfloat16", measured)
    return DtypeChoice("float32", f"bfloat16 {measured}")


def bfloat16_instructions(features: Collection[str]) -> str | None:
    """Name the instructions for bfloat16 among what the CPU has, in /proc/cpuinfo's names."""
    return next((name for feature, name in _INSTRUCTIONS.items() if feature in features), None)


_AS_ASKED = "as PACELINE_ENGINE_DTYPE says"
_INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "bf16": "Arm's BF16"}
"""By feature, the fastest first."""


def _remark(asked: Dtype, processor: Processor) -> str:
    if asked == "float32":
        return ""
    if asked == "float16":
        return (
            "PACELINE_ENGINE_DTYPE is float16, which no compiled op serves on a CPU: torch's ops "
            "compute, and steps take longer than in float32 or bfloat16."
        )
    if processor.instructions is None:
        return (
            "PACELINE_ENGINE_DTYPE is bfloat16, but the processor has no instructions for it: "
            "every number is widened before it is multiplied, and steps with many tokens take "
            "longer than in float32."
        )
    return ""
