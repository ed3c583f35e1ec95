"""Measure the simulator against the real engine: PYTHONPATH=benchmarks python -m sim_to_real."""

import argparse
import asyncio
import json
import math
import os
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

from paceline_cli.traffic.calibration import machine
from sim_to_real.measure import Measured, Options, RealRuns, compare, record
from sim_to_real.page import page
from sim_to_real.plots import ComparedRun, draw_figures, draw_spread
from sim_to_real.spread import spread_of

ROOT = Path(__file__).resolve().parents[2]
_LONGEST_S = 1500.0
"""A machine on which it takes longer is too busy to tell anything."""


def main() -> None:
    """Measure, and write the page, the plots and the figures."""
    options, root, revision = _options()
    begun, load = time.perf_counter(), os.getloadavg()[0]
    recorded = asyncio.run(_within(options))
    measured = compare(recorded, options)
    spent = time.perf_counter() - begun
    note = f"Measured at revision {revision}, in {spent / 60:.0f} minutes."
    docs, raw = root / "docs", root / "benchmarks" / "results" / "cpu"
    _draw(measured, docs / "images" / "sim-to-real")
    raw.mkdir(parents=True, exist_ok=True)
    busy = f"{machine()}, load average {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    text = page(measured, options, busy, "images/sim-to-real", note)
    (docs / "sim-to-real.md").write_text(text, encoding="utf-8")
    (raw / "sim-to-real.json").write_text(_json(measured, options, revision), encoding="utf-8")
    (raw / "sim-to-real-spread.json").write_text(_spread(measured), encoding="utf-8")
    print(f"written: {docs / 'sim-to-real.md'}, {spent:.0f} s in all")


async def _within(options: Options) -> RealRuns:
    async with asyncio.timeout(_LONGEST_S):
        return await record(options, _say)


def _draw(measured: Measured, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        ComparedRun(f"{p.load}, {p.mode}", p.real, p.simulated, p.levelled) for p in measured.played
    ]
    draw_figures(runs, machine(), folder / "figures.png")
    draw_spread([spread_of(p) for p in measured.played], machine(), folder / "spread.png")


def _spread(measured: Measured) -> str:
    """Return JSON with one run a line."""
    runs = (json.dumps(_rounded(asdict(spread_of(p)))) for p in measured.played)
    return "[\n" + ",\n".join(runs) + "\n]\n"


def _json(measured: Measured, options: Options, revision: str) -> str:
    recorded, hardware = measured.recorded, measured.recorded.profile.hardware
    raw = {
        "revision": revision,
        "machine": machine(),
        "seconds": options.seconds,
        "repeats": options.repeats,
        "profile": {
            "steps": recorded.profile.steps,
            "error": recorded.profile.error,
            "dense_ms": {str(n): float(hardware.dense_ms[n]) for n in (1, 4, 16, 64, 256, 1024)},
            "costs": asdict(hardware.costs),
            "noise": asdict(hardware.noise),
        },
        "sla": asdict(recorded.sla),
        "capacity_rps": recorded.rates,
        "between_ms": measured.between_ms,
        "refused": recorded.refused,
        "played": [
            {
                "load": p.load,
                "mode": p.mode,
                "repeat": p.repeat,
                "real": asdict(p.real),
                "simulated": asdict(p.simulated),
                "at_the_runs_speed": asdict(p.levelled),
            }
            for p in measured.played
        ],
    }
    return json.dumps(_rounded(raw), indent=1) + "\n"


def _rounded(value: object) -> object:
    """Round to five digits; null where there is no value."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _options() -> tuple[Options, Path, str]:
    parser = argparse.ArgumentParser(prog="sim_to_real", description=__doc__)
    parser.add_argument("--profile-s", type=float, default=75.0, help="seconds of the profile")
    parser.add_argument("--seconds", type=float, default=24.0, help="of arrivals in each run")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--revision", default=_revision(), help="what the page says was measured")
    parser.add_argument("--quick", action="store_true", help="a short run, written into out/")
    asked = parser.parse_args()
    folder = ROOT / "out" / "sim-to-real"
    root = folder if asked.quick else ROOT
    options = Options(
        folder=folder / "served",
        profile_s=20.0 if asked.quick else asked.profile_s,
        seconds=8.0 if asked.quick else asked.seconds,
        repeats=1 if asked.quick else asked.repeats,
        seed=asked.seed,
    )
    return options, root, asked.revision


def _revision() -> str:
    """Name the checkout; `-dirty` where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
