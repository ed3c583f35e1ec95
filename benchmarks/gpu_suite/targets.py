"""What is wanted of an H200 in bfloat16, and whether a record has it. Pure."""

from dataclasses import dataclass
from typing import Literal

from gpu_suite import names
from gpu_suite.record import Record

Verdict = Literal["met", "MISSED", "not run"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one figure, itself allowed."""

    name: str
    bound: float
    unit: str
    at_most: bool = False
    best_of: tuple[str, ...] = ()
    """Figures of which the best counts, where it is not one of its own name."""

    def value_in(self, record: Record) -> float | None:
        """What was measured, if it was."""
        values = (record.value(name) for name in self.best_of or (self.name,))
        measured = [value for value in values if value is not None]
        return (min if self.at_most else max)(measured, default=None)

    def verdict(self, value: float | None) -> Verdict:
        """Judge a figure; NaN never meets anything."""
        if value is None:
            return "not run"
        return "met" if (value <= self.bound if self.at_most else value >= self.bound) else "MISSED"


@dataclass(frozen=True, slots=True)
class Judged:
    """A target beside what was measured."""

    target: Target
    value: float | None
    verdict: Verdict
    why_absent: str = ""
    """Why there is no value, where the machine is to blame."""


TARGETS: tuple[Target, ...] = (
    *(Target(name, 0, "wrong", at_most=True) for name in (names.WRONG, names.FAILED)),
    *(Target(names.decode(label), 0.80, "share") for label in names.DECODE_LABELS),
    *(Target(names.pointwise(kernel), 0.85, "share") for kernel in names.POINTWISE),
    *(Target(names.sampling(cut), 0.80, "share") for cut in names.SAMPLING_CUTS),
    Target(names.PREFILL_8K, 450, "TFLOP/s", best_of=names.PREFILL_8K_BY),
    *(
        Target(names.step(model), bound_ms, "ms", at_most=True)
        for model, bound_ms in (("qwen2.5-0.5b", 0.8), ("llama-3.2-1b", 1.4), ("llama-3.1-8b", 5.8))
    ),
    *(Target(names.idle(model), 30, "us", at_most=True) for model in names.MODELS),
    Target(names.single("llama-3.1-8b"), 3.9, "ms", at_most=True),
    Target(names.throughput("qwen3-0.6b"), 29_000, "tok/s"),
    Target(names.throughput("llama-3.1-8b"), 9_900, "tok/s"),
    *(
        Target(names.beside(model, peer), least, "x")
        for peer, models in (
            ("transformers", names.THROUGHPUT_MODELS),
            ("vllm", names.BESIDE_MODELS),
        )
        for model in models
        for least in (1.0 if model == "llama-3.1-8b" else 1.3,)
    ),
    Target(names.PARITY, 0, "tokens", at_most=True),
    Target(names.LOST, 0, "tokens", at_most=True),
    Target(names.LEAKED, 0, "blocks", at_most=True),
)


def judged(record: Record) -> tuple[Judged, ...]:
    """Every target beside what the record holds."""
    values = ((target, target.value_in(record)) for target in TARGETS)
    return tuple(
        Judged(target, value, target.verdict(value), record.why_absent(target.name) or "")
        for target, value in values
    )
