"""What is kept of a run: the fits, and every replay in figures."""

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from paceline_tuner.service_spec import SLA
from published_knees.load import Served

AS_PUBLISHED: Final = "as published"
TUNED: Final = "with the tuner and admission"
RESULTS: Final = Path(__file__).parents[1] / "results" / "knees" / "knees.json"


class FittedFigure(msgspec.Struct, frozen=True):
    """A published figure beside the simulated one."""

    load: float
    what: str
    published: float
    simulated: float
    is_fitted: bool

    @property
    def off(self) -> float:
        """By which share the simulated figure is larger."""
        return self.simulated / self.published - 1


class Replay(msgspec.Struct, frozen=True):
    """One load served in one way; each figure is the median over seeds."""

    load: float
    arm: str
    offered_per_s: float
    refused: float
    """Share of the offered requests."""
    good_per_s: float
    """Answered within both targets."""
    good: float
    """Share of the offered requests."""
    tokens_per_s: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p90_ms: float
    tpot_p99_ms: float
    batch_size: int | None
    """Max batch size at the end, of the first pod; None where nobody moved it."""
    token_budget: int | None


class Knee(msgspec.Struct, frozen=True):
    """One knee."""

    name: str
    unit: str
    values: dict[str, float]
    ttft_ms: float
    """The declared target, and the share of requests that it is for."""
    tpot_ms: float
    objective: float
    fit: list[FittedFigure]
    fit_error: float
    """Root mean square of the fitted figures' logarithms of simulated over published."""
    replays: list[Replay]

    def at(self, load: float, arm: str) -> Replay:
        """Find a replay."""
        return next(each for each in self.replays if (each.load, each.arm) == (load, arm))


class Knees(msgspec.Struct, frozen=True):
    """The whole run."""

    command: str
    come_back_s: float
    knees: list[Knee]


def read(path: Path = RESULTS) -> Knees:
    """Read what `python -m published_knees` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Knees)


def write(knees: Knees, path: Path = RESULTS) -> None:
    """Write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(knees), indent=1) + b"\n")


def summed_up(load: float, arm: str, sla: SLA, runs: list[Served], way_s: float) -> Replay:
    """Turn the runs of all seeds into figures; `way_s` is added to each first token."""
    singles = [_figures(load, arm, sla, run, way_s) for run in runs]
    middle = {
        name: _median([getattr(each, name) for each in singles])
        for name in Replay.__struct_fields__
        if name not in {"arm", "batch_size", "token_budget"}
    }
    first = singles[0]
    return Replay(arm=arm, batch_size=first.batch_size, token_budget=first.token_budget, **middle)


def _figures(load: float, arm: str, sla: SLA, run: Served, way_s: float) -> Replay:
    ttft_s = run.ttft_ms / 1e3 + way_s
    assert sla.ttft_p99_ms is not None
    assert sla.tpot_p99_ms is not None
    good = (ttft_s <= sla.ttft_p99_ms / 1e3) & ~(run.tpot_ms > sla.tpot_p99_ms)
    last = run.limits[-1] if run.limits else None
    return Replay(
        load=load,
        arm=arm,
        offered_per_s=len(ttft_s) / run.seconds,
        refused=float(np.mean(np.isnan(ttft_s))),
        good_per_s=float(np.sum(good)) / run.seconds,
        good=float(np.mean(good)),
        tokens_per_s=run.tokens_per_s,
        ttft_mean_s=float(np.nanmean(ttft_s)),
        ttft_p50_s=float(np.nanquantile(ttft_s, 0.5)),
        ttft_p90_s=float(np.nanquantile(ttft_s, 0.9)),
        ttft_p99_s=float(np.nanquantile(ttft_s, 0.99)),
        tpot_p90_ms=float(np.nanquantile(run.tpot_ms, 0.9)),
        tpot_p99_ms=float(np.nanquantile(run.tpot_ms, 0.99)),
        batch_size=None if last is None else last[1],
        token_budget=None if last is None else last[2],
    )


def _median(values: list[float]) -> float:
    return float(f"{np.median(values):.5g}")
