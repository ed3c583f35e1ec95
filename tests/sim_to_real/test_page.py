"""From records to the page, which tells a slower machine apart from a wrong simulation."""

from dataclasses import replace
from pathlib import Path

import pytest

from paceline_engine.pacing import NoPacer
from paceline_sim.hardware import CPU_135M
from paceline_testing.simulated import a_crowd
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import CapacityValues, EngineInfo
from paceline_wire.limits import Limits
from sim_to_real.fitted import profiled
from sim_to_real.loads import promise
from sim_to_real.measure import Measured, Options, RealRun, RealRuns, compare
from sim_to_real.page import page
from sim_to_real.plots import ComparedRun, draw_figures, draw_spread
from sim_to_real.run_setup import MODES, RunSetup, setups
from sim_to_real.simulated import replayed
from sim_to_real.spread import spread_of

OPTIONS = Options(Path("unused"), profile_s=60.0, seconds=60.0, repeats=1, seed=1)
INFO = EngineInfo(
    name="a",
    num_parameters=134_515_008,
    weight_bytes=538_060_032,
    kv_bytes_per_token=46_080,
    device="cpu",
)
SLOWER = 1.4


@pytest.fixture(scope="module")
def measured() -> Measured:
    wide, narrow = (
        replayed(
            CPU_135M,
            a_crowd(0.5, 120.0, seed=seed),
            RunSetup("fixed", SLA(), Limits(batch, budget)),
            NoPacer(),
            seed,
        )
        for seed, (batch, budget) in enumerate(((32, 1024), (8, 64)))
    )
    seen = replace(wide, steps=[*wide.steps, *narrow.steps], info=INFO)
    profile = profiled(seen.steps, INFO, CapacityValues(32, 1024, 4096, 16, 2048))
    sla = promise(profile.hardware)
    ways = setups(profile.hardware, sla)
    runs = tuple(
        RealRun(
            "steady",
            mode,
            0,
            replayed(CPU_135M, a_crowd(0.3, 60.0), ways[mode], NoPacer(), 3, level=SLOWER),
        )
        for mode in MODES
    )
    return compare(RealRuns(seen, profile, sla, ways, {"steady": (0.6,)}, runs, 0), OPTIONS)


def test_a_slower_machine_is_told_apart_from_a_wrong_simulation(measured: Measured) -> None:
    fixed = next(p for p in measured.played if p.mode == "fixed")

    assert fixed.real.level == pytest.approx(SLOWER, rel=0.15)
    assert fixed.simulated.step_p50_ms < 0.85 * fixed.real.step_p50_ms
    assert fixed.levelled.step_p50_ms == pytest.approx(fixed.real.step_p50_ms, rel=0.15)
    assert fixed.levelled.ttft_p50_ms == pytest.approx(fixed.real.ttft_p50_ms, rel=0.4)
    assert fixed.simulated.requests == fixed.real.requests


def test_the_page_holds_each_figure_of_each_run_and_no_number_that_is_none(
    measured: Measured,
) -> None:
    text = page(measured, OPTIONS, "a machine", "images", "Measured at revision x.")

    rows = [line for line in text.splitlines() if line.startswith("| steady |")]
    assert sum("| TTFT p99 |" in row for row in rows) == 2  # fixed and tuned
    assert "nan" not in text
    assert "a machine" in text
    assert "Measured at revision x." in text
    assert "{" not in text  # every field of the templates is filled


def test_both_plots_are_drawn(measured: Measured, tmp_path: Path) -> None:
    runs = [ComparedRun(p.load, p.real, p.simulated, p.levelled) for p in measured.played]

    draw_figures(runs, "a machine", tmp_path / "figures.png")
    draw_spread([spread_of(p) for p in measured.played], "a machine", tmp_path / "spread.png")

    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_spread_keeps_a_hundred_quantiles_and_says_how_far_apart_they_are(
    measured: Measured,
) -> None:
    """Whatever a run's length, the file stays small; equal times are no distance apart."""
    spread = spread_of(measured.played[0])
    alike = replace(spread, step_ms=(spread.step_ms[0],) * 3, ttft_ms=(spread.ttft_ms[0],) * 3)
    twice = replace(alike, step_ms=(*alike.step_ms[:2], [2 * ms for ms in alike.step_ms[0]]))

    assert {len(side) for side in (*spread.step_ms, *spread.ttft_ms)} == {101}
    assert alike.distance == 0.0
    assert twice.distance == pytest.approx(0.5)  # the mean of 100 % for steps and 0 % for tokens
