"""A max batch size that must move: answers grow, and then prompts do, under a TPOT target.

One simulated H100 serves an 8B model to reasoning requests, with a little more load than it can
take within 20 ms a token; after five minutes documents come instead, whose keys and values take
longer to read. The pod begins with room for 1,024 sequences.
"""

from typing import Final

import msgspec
import numpy as np

from paceline_sim.hardware import H100_8B
from paceline_sim.state import OK, SHED
from paceline_tuner.service_spec import SLA
from tune_report import episode
from tune_report.arms.arm import PERIOD_S, Arm
from tune_report.arms.table import named
from tune_report.arrivals import pieces
from tune_report.episode import PodRun
from tune_report.mixes import REASONING, Lengths, Mix
from tune_report.score import score
from tune_report.settings import ServingSetting
from tune_report.workloads import ReportWorkload, shaped

SHIFT_S: Final = 300.0
_DURATION_S: Final = 600.0
_REASONING_RPS, _DOCUMENTS_RPS = 7.5, 5.0
_WINDOW_S: Final = 20.0
_TPOT_MS: Final = 20.0
_DOCUMENTS: Final = Mix("documents", Lengths(3000, 2500, 8000, 500), Lengths(600, 500, 2000, 100))
_SEED: Final = 1


class Track(msgspec.Struct, frozen=True):
    """One way of serving, every five seconds."""

    arm: str
    good: float
    """Share of the offered requests that kept both targets."""
    refused: float
    tpot_p99_ms: list[float | None]
    """Of the answers that ended in the last 20 seconds; None where none did."""
    running: list[int]
    batch_size: list[int]
    """Max batch size; empty where nobody moved it."""


class BatchScene(msgspec.Struct, frozen=True):
    """Both ways."""

    at_s: list[float]
    shift_s: float
    tpot_ms: float
    tracks: list[Track]


def batch_scene() -> BatchScene:
    """Serve the same requests with fixed limits and with the tuner. Deterministic."""
    sla = SLA(ttft_p99_ms=3000.0, tpot_p99_ms=_TPOT_MS)
    setting = ServingSetting("H100 TPOT 20", H100_8B, sla, REASONING)
    workload = ReportWorkload(
        "the batch size moves",
        setting,
        shaped(
            pieces((0.0, _REASONING_RPS), (SHIFT_S, _DOCUMENTS_RPS)),
            REASONING,
            later=(SHIFT_S, _DOCUMENTS),
            duration_s=_DURATION_S,
        ),
        REASONING,
        _DURATION_S,
    )
    at_s = np.arange(PERIOD_S, _DURATION_S + PERIOD_S, PERIOD_S)
    tracks = [_track(workload, named(arm), at_s) for arm in ("default 1024/8192", "ours")]
    return BatchScene(at_s.tolist(), SHIFT_S, _TPOT_MS, tracks)


def _track(workload: ReportWorkload, arm: Arm, at_s: episode.Floats) -> Track:
    (run,) = episode.run(workload, arm, _SEED, 1.0)
    judged = score(workload, (run,))
    by_time = {moment.at_s: moment for moment in run.moments}
    ended = run.outcome == OK
    return Track(
        arm=arm.name,
        good=round(judged.good / judged.offered, 4),
        refused=round(float(np.mean(run.outcome == SHED)), 4),
        tpot_p99_ms=[
            _p99(run.tpot_ms[ended & (run.finished_s > t - _WINDOW_S) & (run.finished_s <= t)])
            for t in at_s
        ],
        running=[_running(run, t) for t in at_s],
        batch_size=[by_time[t].batch for t in at_s] if by_time else [],
    )


def _running(run: PodRun, t: float) -> int:
    """Return the most sequences that decoded together in the last period."""
    inside = (run.step_end_s > t - PERIOD_S) & (run.step_end_s <= t)
    return int(run.step_decode[inside].max(initial=0))


def _p99(values: episode.Floats) -> float | None:
    known = values[~np.isnan(values)]
    return round(float(np.quantile(known, 0.99)), 2) if len(known) else None
