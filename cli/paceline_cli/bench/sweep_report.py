"""The sweep's report: one HTML file that needs nothing else, and the same figures as JSON."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline_cli.bench.grid import Setting
from paceline_cli.bench.sweep_plot import curves
from paceline_cli.bench.sweep_points import (
    SHARES,
    ClientMeasures,
    Percentile,
    Sweep,
    TunedPoint,
    label,
    least_count,
)
from paceline_cli.pages import rendered
from paceline_cli.plot_style import svg


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One line of the table."""

    batch_size: int
    token_budget: int
    offered: str
    missed: str
    cells: tuple[str, ...]
    """P50, P99 and P99.9 of TTFT, TPOT, ITL and E2E; a maximum is marked `max`."""
    tokens_per_s: str


def write_report(sweep: Sweep, folder: Path, *, png: Path | None = None) -> Path:
    """Write `sweep.html` and `sweep.json` into the folder; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = curves(sweep)
    if png:
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, dpi=140)
    (folder / "sweep.json").write_text(as_json(sweep), encoding="utf-8")
    page = folder / "sweep.html"
    page.write_text(render(sweep, svg(figure)), encoding="utf-8")
    return page


def render(sweep: Sweep, curves_svg: str) -> str:
    """The page's text."""
    return rendered(
        "bench/sweep.html.j2",
        sweep=sweep,
        tables=(
            ("Max batch size", [_row(p.setting, p.measured) for p in sweep.along("batch_size")]),
            ("Token budget", [_row(p.setting, p.measured) for p in sweep.along("token_budget")]),
        ),
        chosen=_row(sweep.chosen, sweep.chosen.measured) if sweep.chosen else None,
        shares=[label(share) for share in SHARES],
        ranks=", ".join(f"{label(share)} needs {least_count(share):,}" for share in SHARES),
        curves_svg=curves_svg,
    )


def as_json(sweep: Sweep) -> str:
    """Every figure; an infinite latency is the string `inf`, which JSON has no number for."""
    document: dict[str, Any] = {
        "name": sweep.name,
        "model": sweep.model,
        "machine": sweep.machine,
        "sla": asdict(sweep.sla),
        "note": sweep.note,
        "rate_rps": sweep.rate_rps,
        "cv": sweep.cv,
        "seconds": sweep.seconds,
        "points": [asdict(p.setting) | figures(p.measured) for p in sweep.points],
        "chosen": None
        if sweep.chosen is None
        else {
            "batch_size": sweep.chosen.batch_size,
            "token_budget": sweep.chosen.token_budget,
            "step_target_ms": sweep.chosen.step_target_ms,
            "phase": sweep.chosen.phase,
        }
        | figures(sweep.chosen.measured),
    }
    return json.dumps(document, indent=2, allow_nan=False)


def figures(measured: ClientMeasures) -> dict[str, Any]:
    """What the client saw, as JSON has it."""
    return {
        "offered": measured.offered,
        "missed": measured.missed,
        "tokens_per_s": measured.tokens_per_s,
    } | {
        f"{name.lower()}_ms": {
            label(value.share).lower(): {
                "ms": "inf" if value.ms == math.inf else value.ms,
                "n": value.count,
                "is_max": value.is_max,
            }
            for value in values
        }
        for name, values in measured.latencies()
    }


def _row(limits: Setting | TunedPoint, measured: ClientMeasures) -> SweepRow:
    return SweepRow(
        batch_size=limits.batch_size,
        token_budget=limits.token_budget,
        offered=str(measured.offered),
        missed=str(measured.missed),
        cells=tuple(_cell(value) for _, values in measured.latencies() for value in values),
        tokens_per_s=f"{measured.tokens_per_s:.1f}",
    )


def _cell(value: Percentile) -> str:
    if value.ms is None:
        return "-"
    if value.ms == math.inf:
        return "no answer"
    return f"{'max ' if value.is_max else ''}{value.ms:,.0f}"
