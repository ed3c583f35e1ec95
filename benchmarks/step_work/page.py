"""The rows of the table of predicted steps in docs/gpu.md: `python -m step_work --page`."""

from collections.abc import Iterator, Mapping

from step_work.gpus import GPUS
from step_work.ranks import rank_work
from step_work.steps import DECODE, LONG_PREFILL, PREFILL, FakeModel
from step_work.times import predict, tensor_share
from step_work.work import StepWork, work_of

_SHOWN = ("H100", "H200", "B200")
_LARGEST = "llama-3.1-8b"


def rows(models: Mapping[str, FakeModel]) -> Iterator[str]:
    """Predict the steps that the page has, one a row."""
    small, middle, large = models["qwen2.5-0.5b"], models["llama-3.2-1b"], models[_LARGEST]
    yield row_of("Qwen2.5-0.5B, 64 decodes at context 1k", work_of(small, DECODE))
    yield row_of("Llama-3.2-1B, the same", work_of(middle, DECODE))
    yield row_of("Llama-3.1-8B, the same", work_of(large, DECODE))
    yield row_of("Llama-3.1-8B, a prompt of 2,048", work_of(large, PREFILL))
    yield row_of("Llama-3.1-8B, a prompt of 8,192", work_of(large, LONG_PREFILL))
    rank = rank_work(_LARGEST, by_peers=False)
    name = "Llama-3.1-8B on 2 GPUs, rank 0's part of 64 decodes at context 1k, sums by NCCL"
    yield row_of(name, rank, is_whole=False)


def row_of(name: str, work: StepWork, *, is_whole: bool = True) -> str:
    """Write one row; of a rank's part nobody has said what the least is."""
    cells = [name, _bytes(work, is_whole=is_whole)]
    cells.append(f"{len(work.launches)}, {sum(work.of_a_layer.values())}")
    cells += [_time(work, gpu) for gpu in _SHOWN]
    return f"| {' | '.join(cells)} |"


def _bytes(work: StepWork, *, is_whole: bool) -> str:
    moved = f"{work.num_bytes / 1e9:.1f} GB"
    if not is_whole:
        return moved
    beside = work.surplus_beside(GPUS["H200"].l2_bytes)
    return f"{moved}; {_number(100 * work.surplus)} %; {_number(100 * beside)} %"


def _time(work: StepWork, name: str) -> str:
    times = predict(work, GPUS[name])
    ms = (_number(1e3 * each, 2) for each in (times.likely, times.best, times.worst))
    likely, best, worst = ms
    cell = f"{likely} ms ({best} to {worst})"
    if work.step.chunks:
        share = 100 * tensor_share(work, GPUS[name]).likely
        cell += f", {share:.0f} % of the tensor rate"
    return cell


def _number(value: float, digits: int = 1) -> str:
    """Write a number with three digits, or with so many behind the point where it is small."""
    if value < 10:
        return f"{value:.{digits}f}"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
