"""Waits under an end-to-end target, simulated: PYTHONPATH=... python -m order.answers [--seeds 3].

Who waits for more than a quarter of the target is refused; or for more than what its longest
answer leaves, by `max_tokens` and the pace, where that is later. Clients name `max_tokens` of one
to four times what they get, all of them or half of them. Each is shown with the batch size, of
three, with which it has most requests in time.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from order.cases import CASES, Case
from order.play import Floats, rows_of
from paceline_sidecar.hot_config import Sla
from paceline_sim.simulated_engine import SettledPacer, SimulatedEngine
from paceline_sim.state import OK
from paceline_wire.limits import Limits
from tune_report.episode import DRAIN_S

RESULTS = Path(__file__).parents[1] / "results" / "order"
DURATION_S, _Q_R, _MIN_PREFILL = 240.0, 1.06, 64
_DRAIN_S = 3 * DRAIN_S
_SETTINGS = (
    ("conversation, H100", 15.0, 12.0, (64, 128, 256)),
    ("conversation, H100", 15.0, 25.0, (64, 128, 256)),
    ("conversation, code and reasoning, H100", 15.3, 40.0, (64, 128, 256)),
    ("long prompts beside conversation, H100", 4.36, 40.0, (32, 64, 128)),
)
"""Case, requests a second, target in seconds, batch sizes."""
_LOADS = (0.95, 1.3, 1.8)
NOBODY, HALF, ALL, EXACT = "a quarter", "half name it", "all name it", "all name it exactly"


class Row(msgspec.Struct, frozen=True):
    """One way at one load, with its best batch size."""

    case: str
    target_s: float
    rps: float
    way: str
    batch: int
    in_time_rps: float
    late: float
    """Share of those that were served."""
    longest: float
    """Share of the tenth with the longest answers that were in time."""


def play(
    case: Case, *, batch: int, target_s: float, rps: float, way: str, seed: int
) -> tuple[float, float, float]:
    """Serve one load; return requests a second in time, and the two shares of a row."""
    requests, _ = case.draw(seed, rps, DURATION_S)
    nothing = np.zeros(len(requests))

    def served(patience_s: Floats) -> SimulatedEngine:
        engine = SimulatedEngine(
            case.setting.hardware,
            rows_of(requests, slice(0, len(nothing)), requests.arrival_s, patience_s),
            capacity=case.capacity,
            limits=Limits(batch, case.setting.max_token_budget),
            pacer=SettledPacer(_Q_R, _MIN_PREFILL),
            seed=seed,
        )
        engine.run_until(DURATION_S + _DRAIN_S)
        return engine

    sla, random = Sla(e2e_p99_ms=target_s * 1e3), np.random.default_rng(seed)
    shared = np.full(len(nothing), (sla.first_token_ms(1) or 0.0) / 1e3)
    engine = served(shared)
    if way != NOBODY:
        # The pace is that of the same load without the rule; the sidecar has that of ten seconds.
        times = 1.0 if way == EXACT else random.uniform(1, 4, len(nothing))
        answers_ms = np.ceil(requests.output * times) * np.nanmean(engine.tpot_ms)
        own = np.array([(sla.first_token_ms(1, float(each)) or 0.0) / 1e3 for each in answers_ms])
        engine = served(
            np.where(random.random(len(nothing)) < 0.5, own, shared) if way == HALF else own
        )
    came = engine.outcome == OK
    in_time = came & (engine.jobs["last_s"] - engine.jobs["arrival_s"] <= target_s)
    is_long = requests.output > np.quantile(requests.output, 0.9)
    late = 1 - float(in_time.sum()) / max(int(came.sum()), 1)
    return float(in_time.sum()) / DURATION_S, late, float(np.mean(in_time[is_long]))


def _rows(seeds: Sequence[int]) -> Iterator[Row]:
    for name, unit_rps, target_s, batches in _SETTINGS:
        case = next(case for case in CASES if case.name == name)
        for load in _LOADS:
            for way in (NOBODY, HALF, ALL, EXACT):
                runs = {
                    batch: [
                        play(
                            case,
                            batch=batch,
                            target_s=target_s,
                            rps=load * unit_rps,
                            way=way,
                            seed=seed,
                        )
                        for seed in seeds
                    ]
                    for batch in batches
                }
                found = [
                    Row(
                        name,
                        target_s,
                        load * unit_rps,
                        way,
                        batch,
                        *np.mean(shown, axis=0).tolist(),
                    )
                    for batch, shown in runs.items()
                ]
                yield max(found, key=lambda row: row.in_time_rps)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="order.answers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = [*_rows(range(1, options.seeds + 1))]
    (options.out / "answers.md").write_text(page(rows, options.seeds))


def page(rows: Sequence[Row], num_seeds: int) -> str:
    """Write Markdown."""
    intro = (
        "# Waits under an end-to-end target, simulated\n\n"
        "`PYTHONPATH=benchmarks:engine:kernels:operator:sidecar:sim python -m order.answers` wrote"
        f" this page: {DURATION_S:g} simulated seconds, means over {num_seeds} seeds, all ways on"
        " the same requests, each with its best batch size of three.\n"
        "`a quarter`: who waits for longer than a quarter of the target is refused. In the others"
        " who names `max_tokens` may wait until its longest answer would end after 0.9 of it,"
        " where that is later; they name one to four times what they get, or exactly that"
        " ([why](../../../docs/decisions/0066-an-end-to-end-target-bounds-the-batch.md)).\n"
    )
    header = (
        "| Requests/s | `max_tokens` | in time/s | late, of the served | longest tenth in time |"
    )
    lines = [intro]
    for name, target_s in dict.fromkeys((row.case, row.target_s) for row in rows):
        lines += [f"## {name}, {target_s:g} s\n", header, "|---|---|---|---|---|"]
        lines += [
            f"| {row.rps:.1f} | {row.way} | {row.in_time_rps:.2f} | {row.late:.1%}"
            f" | {row.longest:.1%} |"
            for row in rows
            if (row.case, row.target_s) == (name, target_s)
        ]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
