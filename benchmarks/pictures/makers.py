"""Which command makes each committed picture."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from autoscale.plots import draw_ramps, draw_real
from autoscale.ramp import ramps
from balancing.results import ALIKE, MIXED
from balancing.results import read as read_balancing
from gateway.plot import draw_policies
from overload.flood import Flood, draw_totals
from overload.flood import draw_flood as draw_floods_seconds
from paceline_cli.bench.comparison import read_comparison
from paceline_cli.bench.sweep_points import read_sweeps
from paceline_cli.demo.plots import save_over_time
from paceline_cli.demo.series import DemoSeries
from pictures.attainment import draw_attainment
from pictures.balancing import draw_balancing
from pictures.knees import draw_knees
from pictures.prefix import Pair, draw_prefix
from pictures.scene_plots import draw_batch_size, draw_bursts, draw_flood
from pictures.scores import committed_scores
from pictures.sequences import MEMORY, draw_sequences
from pictures.speculation import Gain, draw_speculation
from pictures.sweep import draw_sweep
from pictures.thumbnails import draw_batch_sizes, draw_burst_shares, draw_flood_first_tokens
from pictures.ways_of_batching import draw_goodput, draw_p99_over_time, draw_padding
from published_knees.results import read as read_knees
from scenes.batch_size import BatchScene
from scenes.bursts import BurstScene
from scenes.flood import FloodScene
from sim_to_real.figures import RunFigures
from sim_to_real.plots import ComparedRun, draw_figures, draw_spread
from sim_to_real.spread import Spread
from soak import Sample, plot
from tune_report.limits_plot import draw_limits
from tune_report.plots import draw_scores

ROOT: Final = Path(__file__).resolve().parents[2]
_RESULTS: Final = ROOT / "benchmarks" / "results"
_GUESSED_TEXTS: Final = ("repetitive", "prose")
"""Texts whose gain by speculation is drawn."""


def _soak(root: Path) -> None:
    raw = json.loads((_RESULTS / "cpu" / "soak.json").read_text())
    plot([Sample(**each) for each in raw["samples"]], _in(root, "benchmarks/results/cpu/soak.svg"))


def _sim_to_real(root: Path) -> None:
    raw = json.loads((_RESULTS / "cpu" / "sim-to-real.json").read_text())
    runs = [
        ComparedRun(
            f"{one['load']}, {one['mode']}",
            _run(one["real"]),
            _run(one["simulated"]),
            _run(one["at_the_runs_speed"]),
        )
        for one in raw["played"]
    ]
    draw_figures(runs, raw["machine"], _in(root, "docs/images/sim-to-real/figures.png"))
    spread = (_RESULTS / "cpu" / "sim-to-real-spread.json").read_bytes()
    spreads = msgspec.json.decode(spread, type=list[Spread])
    draw_spread(spreads, raw["machine"], _in(root, "docs/images/sim-to-real/spread.png"))


def _run(raw: dict[str, Any]) -> RunFigures:
    """Read one run's figures; the file has null where there is no value."""
    known = {name: math.nan if value is None else value for name, value in raw.items()}
    return msgspec.convert(known, RunFigures)


def _tuning(root: Path) -> None:
    tuning = _RESULTS / "tuning"
    scores = committed_scores(tuning / "figures.json", tuning / "tracks.json")
    draw_scores(scores, _in(root, "docs/images/tuning/sweep.png").parent)
    draw_attainment(scores, _in(root, "docs/images/tuning/attainment.png"))
    draw_limits(scores, _in(root, "docs/images/tuning/limits.png"))


def _autoscale(root: Path) -> None:
    raw = json.loads((_RESULTS / "autoscale" / "autoscale.json").read_text())
    drawn = ramps(raw["pod"]["capacity_rps"])
    draw_ramps(raw, drawn, _in(root, "docs/images/autoscaling/ramps.png"))
    real = json.loads((_RESULTS / "autoscale" / "real.json").read_text())
    draw_real(real, _in(root, "docs/images/autoscaling/real.png"))


def _gateway(root: Path) -> None:
    raw = json.loads((_RESULTS / "gateway" / "gateway.json").read_text())
    draw_policies(raw["rows"], raw["ttft_target_s"], _in(root, "docs/images/gateway.png"))


def _knees(root: Path) -> None:
    draw_knees(read_knees(), _in(root, "docs/images/knees.png"))


def _balancing(root: Path) -> None:
    fleets = (read_balancing(ALIKE), read_balancing(MIXED))
    draw_balancing(fleets, _in(root, "docs/images/balancing.png"))


def _sweep(root: Path) -> None:
    (sweep,) = read_sweeps([_RESULTS / "cpu" / "sweep.json"])
    sizes, budgets = (
        _in(root, f"docs/images/batching/{name}.png") for name in ("batch-sizes", "token-budgets")
    )
    title = "Beyond a max batch size of 16 answers end no sooner"
    draw_sweep(sweep, "batch_size", ("TTFT", "E2E", "ITL"), title, sizes)
    title = "Smaller token budgets shorten gaps, not first tokens"
    draw_sweep(sweep, "token_budget", ("TTFT", "ITL"), title, budgets)
    draw_batch_sizes(sweep, _in(root, "docs/images/readme/batch-sizes.png"))


def _compare(root: Path) -> None:
    comparison = read_comparison(_RESULTS / "cpu" / "compare.json")
    draw_goodput(comparison, _in(root, "docs/images/batching/goodput.png"))
    draw_p99_over_time(comparison, _in(root, "docs/images/batching/p99-over-time.png"))
    draw_padding(comparison, _in(root, "docs/images/batching/padding.png"))


def _techniques(root: Path) -> None:
    cpu = _RESULTS / "cpu"
    pairs = msgspec.json.decode((cpu / "prefix.json").read_bytes(), type=list[Pair])
    draw_prefix(pairs, _in(root, "docs/images/batching/prefix.png"))
    gains = msgspec.json.decode((cpu / "speculation.json").read_bytes(), type=list[Gain])
    speculation = _in(root, "docs/images/batching/speculation.png")
    draw_speculation(gains, _GUESSED_TEXTS, speculation)
    draw_sequences(MEMORY, _in(root, "docs/images/batching/sequences.png"))


def _overload(root: Path) -> None:
    raw = json.loads((_RESULTS / "overload" / "overload.json").read_text())
    draw_totals(raw, _in(root, "docs/images/overload/totals.png"))
    flood = msgspec.json.decode((_RESULTS / "overload" / "flood.json").read_bytes(), type=Flood)
    draw_floods_seconds(flood, _in(root, "docs/images/overload/flood.png"))


def _demo(root: Path) -> None:
    series = msgspec.json.decode((_RESULTS / "cpu" / "demo.json").read_bytes(), type=DemoSeries)
    save_over_time(series, _in(root, "docs/images/demo-p99.png"))


def _scenes(root: Path) -> None:
    scenes = _RESULTS / "scenes"
    moves = msgspec.json.decode((scenes / "batch-size.json").read_bytes(), type=BatchScene)
    draw_batch_size(moves, _in(root, "docs/images/batching/tuned-live.png"))
    bursts = msgspec.json.decode((scenes / "bursts.json").read_bytes(), type=BurstScene)
    draw_bursts(bursts, _in(root, "docs/images/batching/bursts.png"))
    draw_burst_shares(bursts, _in(root, "docs/images/readme/bursts.png"))
    flood = msgspec.json.decode((scenes / "flood.json").read_bytes(), type=FloodScene)
    draw_flood(flood, _in(root, "docs/images/batching/flood.png"))
    draw_flood_first_tokens(flood, _in(root, "docs/images/readme/flood.png"))


def _in(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


DRAWN_BY_THEIR_RUN: Final = {
    "docs/images/live-page.png": "python benchmarks/live_page_picture.py",
}
"""Pictures of a browser's page, and what takes them."""
MAKERS: Final[tuple[tuple[Callable[[Path], None], tuple[str, ...]], ...]] = (
    (_demo, ("docs/images/demo-p99.png",)),
    (
        _autoscale,
        ("docs/images/autoscaling/ramps.png", "docs/images/autoscaling/real.png"),
    ),
    (_soak, ("benchmarks/results/cpu/soak.svg",)),
    (
        _sim_to_real,
        ("docs/images/sim-to-real/figures.png", "docs/images/sim-to-real/spread.png"),
    ),
    (
        _tuning,
        (
            "docs/images/tuning/attainment.png",
            "docs/images/tuning/goodput.png",
            "docs/images/tuning/limits.png",
            "docs/images/tuning/summary.png",
            "docs/images/tuning/sweep.png",
        ),
    ),
    (_knees, ("docs/images/knees.png",)),
    (_gateway, ("docs/images/gateway.png",)),
    (_balancing, ("docs/images/balancing.png",)),
    (
        _sweep,
        (
            "docs/images/batching/batch-sizes.png",
            "docs/images/batching/token-budgets.png",
            "docs/images/readme/batch-sizes.png",
        ),
    ),
    (
        _compare,
        (
            "docs/images/batching/goodput.png",
            "docs/images/batching/p99-over-time.png",
            "docs/images/batching/padding.png",
        ),
    ),
    (
        _techniques,
        (
            "docs/images/batching/prefix.png",
            "docs/images/batching/speculation.png",
            "docs/images/batching/sequences.png",
        ),
    ),
    (
        _scenes,
        (
            "docs/images/batching/tuned-live.png",
            "docs/images/batching/bursts.png",
            "docs/images/batching/flood.png",
            "docs/images/readme/bursts.png",
            "docs/images/readme/flood.png",
        ),
    ),
    (_overload, ("docs/images/overload/flood.png", "docs/images/overload/totals.png")),
)
"""Each function that draws, and the pictures that it writes below a root folder."""


def redraw(root: Path) -> list[str]:
    """Draw below `root` every picture that has committed results; return their names."""
    for make, _ in MAKERS:
        make(root)
    return [name for _, names in MAKERS for name in names]
