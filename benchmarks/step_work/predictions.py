"""Predicted times of the steps that the suite measures, beside what others have published."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_suite import names
from gpu_suite.mixed_step import EAGER, IN_GRAPH, STEP
from paceline_kernels.dependent import dependent
from step_work import assumed
from step_work.gpus import GPUS, Gpu
from step_work.steps import DECODE, LONG_PREFILL, PREFILL, FakeModel, Step
from step_work.times import Predicted, parts_of, predict, tensor_share
from step_work.work import StepWork, Work, work_of

SINGLE = Step("1 decode at context 128", contexts=(128,))
_MIXED = Step(
    "the suite's mixed step, op by op",
    (STEP.context_each,) * STEP.decode,
    ((STEP.prefill, STEP.prefill + STEP.prefill_context),),
)
_IN_GRAPH = replace(_MIXED, name="the suite's mixed step, in a graph", in_graph=True)

PUBLISHED = (
    (
        "vLLM, Llama-3.1-8B in bfloat16, H100: 6.44 ms + 0.0437 us for each token of all contexts, "
        "so 9.30 ms for 64 decodes at context 1k (the line of a few requests with long "
        "contexts, drawn out to here), and 6.45 ms for one at 128 (vLLM's blog, 2026-04-22)"
    ),
    (
        "Llama-3.2-1B in bfloat16, H100, one request at a context of some hundred: less than 1 ms "
        "in one kernel for the whole step, over 1.5 times that with SGLang, almost 2.5 times with "
        "vLLM (hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles)"
    ),
    (
        "gpt-fast, Llama-3.1-8B in bfloat16, A100 80GB at 330 W, one request: 93.9 tokens/s, "
        "10.6 ms (its README)"
    ),
    (
        "TensorRT-LLM: tokens/s at full load, Llama-3.1-8B in FP8 (its performance overview); "
        "no time of a step in bfloat16 was found, of 0.5B none of any engine on these GPUs, and of "
        "prompts of 2,048 or 8,192 none in bfloat16"
    ),
)
"""What others say of the same shapes; none of it was measured here."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the step that is worth knowing, and the launches that it saves."""

    name: str
    step: Step
    labels: frozenset[str]


CHANGES = (
    Change("norms within the products behind them", DECODE, frozenset({"rms_norm"})),
    Change("a gate within the product before it", DECODE, frozenset({"gate_mul"})),
    Change("RoPE and storing within attention", DECODE, frozenset({"rope_and_store_kv"})),
)


def table_of(model: FakeModel) -> str:
    """Predict every step of a model on every GPU, then what changes of it would gain."""
    decode, prefill = work_of(model, DECODE), work_of(model, PREFILL)
    mixed = (work_of(model, _MIXED), work_of(model, _IN_GRAPH))
    works = (work_of(model, SINGLE), decode, *mixed, prefill, work_of(model, LONG_PREFILL))
    lines = [f"{model.name}: PREDICTED, nothing of this is measured"]
    for work in works:
        lines += [f"  {work.step.name}", *_step_lines(work)]
    lines += [f"  {decode.step.name}, H200: {parts_of(decode, GPUS['H200'])}"]
    lines.append("  what it would gain on an H200, predicted:")
    lines += _gain_lines(model, decode, prefill)
    return "\n".join(lines)


def _step_lines(work: StepWork) -> Iterator[str]:
    for gpu in GPUS.values():
        bound_s = max(work.least_bytes / gpu.bandwidth, work.flops / gpu.tensor_rate)
        line = (
            f"    {gpu.name:5} {predict(work, gpu)!s:32} data sheet alone {1e3 * bound_s:7.2f} ms"
        )
        if work.step.chunks:
            share = tensor_share(work, gpu)
            line += (
                f"   {share.likely:.0%} of the tensor rate ({share.worst:.0%} to {share.best:.0%})"
            )
        yield line


def _gain_lines(model: FakeModel, decode: StepWork, prefill: StepWork) -> Iterator[str]:
    gpu, layers = GPUS["H200"], model.config.num_layers
    launch = assumed.LAUNCH_S
    of_launches = Predicted(*(layers * end for end in (launch.likely, launch.best, launch.worst)))
    yield _gain_line("a launch less a layer, its bytes aside", of_launches, "a step in a graph")
    for change in CHANGES:
        work = decode if change.step is DECODE else prefill
        yield _gain_line(change.name, _gained(work, gpu, change.labels), change.step.name)
    with dependent.turned(on=True):
        early = work_of(model, DECODE)
    gained = _less(predict(decode, gpu), predict(early, gpu))
    yield _gain_line("dependent launches", gained, DECODE.name)


def _gain_line(name: str, gained: Predicted, where: str) -> str:
    ends = (f"{1e6 * end:.0f}" for end in (gained.likely, gained.best, gained.worst))
    likely, best, worst = ends
    return f"    {name:42} {likely} us ({best} to {worst}) of {where}"


def _gained(work: StepWork, gpu: Gpu, labels: frozenset[str]) -> Predicted:
    def is_saved(one: Work) -> bool:
        return one.label in labels

    return _less(predict(work, gpu), predict(work, gpu, is_saved))


def _less(now: Predicted, then: Predicted) -> Predicted:
    return Predicted(now.likely - then.likely, now.best - then.best, now.worst - then.worst)


def assumptions() -> str:
    """Say what the predictions assume, and because of what."""
    lines = ["Assumed, with the range that predictions have in brackets:"]
    for name, each in assumed.EVERYTHING.items():
        scale, unit = (1e6, " us") if name.endswith("_S") else (1, "")
        values = (f"{scale * end:.3g}" for end in (each.likely, each.best, each.worst))
        likely, best, worst = values
        lines.append(f"  {name:16} {likely}{unit} ({best} to {worst}): {each.because}")
    return "\n".join(lines)


def figures_of(model: FakeModel, gpu: Gpu) -> Sequence[tuple[str, Predicted]]:
    """Predict what the suite measures of a model, under the names of its figures."""
    steps = (
        (names.step(model.name), DECODE),
        (names.single(model.name), SINGLE),
        (names.mixed(model.name, EAGER), _MIXED),
        (names.mixed(model.name, IN_GRAPH), _IN_GRAPH),
    )
    return [(name, predict(work_of(model, step), gpu)) for name, step in steps]
