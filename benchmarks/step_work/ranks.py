"""A step of 64 decodes in the first of two ranks: its sums by NCCL and through peer memory."""

from dataclasses import replace

from paceline_testing.ranks_alone import ranks_alone
from step_work.gpus import GPUS, Gpu
from step_work.steps import DECODE, fake_model
from step_work.times import Predicted, predict
from step_work.work import StepWork, work_of

RANKS = 2


def rank_work(name: str, *, by_peers: bool, num_layers: int | None = None) -> StepWork:
    """Run the step in one rank, the other being silent; with the model's own layers, or so many."""
    with ranks_alone(RANKS, nvlink=by_peers):
        work = work_of(fake_model(name, RANKS, num_layers=num_layers), DECODE)
    by = "peer memory" if by_peers else "NCCL"
    step = replace(DECODE, name=f"{DECODE.name}, each of two ranks, by {by}")
    return replace(work, step=step)


def without_norms_behind_sums(work: StepWork) -> StepWork:
    """Leave out the norms that a kernel of sum, residual and norm would be one with."""
    pairs = zip(work.launches, (None, *work.launches), strict=False)
    kept = [
        one
        for one, before in pairs
        if not (before and before.kind == "sum of ranks" and one.label == "rms_norm")
    ]
    return replace(work, launches=tuple(kept))


def table_of(name: str) -> str:
    """Predict the step on every GPU with NVLink in the model."""
    by_nccl, by_peers = (rank_work(name, by_peers=each) for each in (False, True))
    lines = [f"{name}: PREDICTED, nothing of this is measured"]
    for work in (by_nccl, by_peers):
        layer = sum(work.of_a_layer.values())
        lines.append(f"  {work.step.name}: {len(work.launches)} launches, {layer} a layer")
        lines += [f"    {gpu.name:5} {predict(work, gpu)}" for gpu in GPUS.values()]
    gpu = GPUS["H200"]
    lines.append("  what it would gain on an H200, predicted:")
    lines.append(f"    sums by peers {_gained(by_nccl, by_peers, gpu)}")
    fused = without_norms_behind_sums(by_peers)
    lines.append(f"    the norms within these sums {_gained(by_peers, fused, gpu)}")
    return "\n".join(lines)


def _gained(now: StepWork, then: StepWork, gpu: Gpu) -> Predicted:
    before, after = predict(now, gpu), predict(then, gpu)
    return Predicted(
        before.likely - after.likely, before.best - after.best, before.worst - after.worst
    )
