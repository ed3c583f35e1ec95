"""Evaluate the tuner: PYTHONPATH=benchmarks python -m tune_report [--quick] [--jobs 2]."""

import argparse
import json
import subprocess
import time
from pathlib import Path

import msgspec

from tune_report.cache import ROOT
from tune_report.jobs import Bench
from tune_report.long_page import long_page
from tune_report.page import page
from tune_report.plots import draw
from tune_report.run import Results, check_names, evaluate, evaluate_briefly
from tune_report.targets import figures
from tune_report.tracks import plain_score, rounded, tracks_of, write_tracks
from tune_report.workloads import QUICK, long_prompts, workloads

_TRACE = ROOT.parent / "shared" / "traces" / "azure-llm-2023-conv.csv"
_SEEDS = (1, 2, 3, 4, 5)
_CACHE = ROOT / "out" / "tune-report" / "cache"


def main() -> None:
    """Run what is missing and write the page, the plots and the figures."""
    options = _options()
    begun = time.perf_counter()
    check_names()
    trace = options.trace if options.trace.exists() else None
    chosen = list(workloads(trace))
    if options.long:
        _long(options)
        return
    if options.quick:
        first = chosen[0].setting.name
        chosen = [w for w in chosen if w.name in {f"{first}: {name}" for name in QUICK}]
    if options.only:
        chosen = [w for w in chosen if options.only in w.name]
    seeds = _SEEDS[:1] if options.quick else _SEEDS[: options.seeds]
    bench = Bench(options.cache, options.jobs)
    results = evaluate(bench, chosen, seeds, trace, with_ablations=options.ablations)
    is_whole = not (options.quick or options.only)
    note = f"Measured at revision {options.revision}.\n"
    if trace is None:
        note += f"The trace workload was left out: {options.trace.name} is not there.\n"
    _write(results, ROOT if is_whole else ROOT / "out" / "tune-report", note)
    for figure in figures(results):
        print(f"{figure.verdict:10} {figure.claim} {figure.target}: {figure.measured}")
    print(f"{time.perf_counter() - begun:.0f} s in all")


def _long(options: argparse.Namespace) -> None:
    """Run the family of long prompts, which has a page of its own."""
    chosen = [w for w in long_prompts() if options.only in w.name]
    results = evaluate_briefly(
        Bench(options.cache, options.jobs), chosen, _SEEDS[: options.seeds], None
    )
    root = ROOT / "out" / "tune-report" if options.only else ROOT
    folder = root / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tuning-long-prompts.md").write_text(long_page(results, options.revision))
    print(f"written: {folder / 'tuning-long-prompts.md'}")


def _write(results: Results, root: Path, note: str) -> None:
    docs, raw = root / "docs", root / "benchmarks" / "results" / "tuning"
    draw(results, docs / "images" / "tuning")
    raw.mkdir(parents=True, exist_ok=True)
    (docs / "tuning-report.md").write_text(page(results, "images/tuning", note))
    (raw / "figures.json").write_text(_lines(_raw(results)))
    write_tracks(tracks_of(results), raw / "tracks.json")
    print(f"written: {docs / 'tuning-report.md'}")


def _raw(results: Results) -> dict[str, object]:
    """Every figure and every score, without the tracks of limits."""
    scores = []
    for (workload, arm), mine in results.scores.items():
        for seed, score in zip(results.seeds, mine, strict=True):
            named = {"workload": workload, "arm": arm, "seed": seed}
            scores.append({**named, **plain_score(score)})
    return {
        "figures": msgspec.to_builtins(figures(results)),
        "capacity_rps": results.units,
        "oracle": results.oracle,
        "best_single_static": results.single,
        "schedules": {
            name: [each.pairs for each in found] for name, found in results.schedules.items()
        },
        "scores": scores,
    }


def _lines(raw: dict[str, object]) -> str:
    """Write JSON with one score a line, so that a diff of two runs shows their scores."""
    scores = raw.pop("scores")
    assert isinstance(scores, list)
    rows = ",\n".join(json.dumps(rounded(score)) for score in scores)
    return json.dumps(raw, indent=1)[:-2] + f',\n "scores": [\n{rows}\n ]\n}}\n'


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tune_report", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, five workloads, into out/")
    parser.add_argument("--long", action="store_true", help="the family of long prompts alone")
    parser.add_argument("--ablations", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seeds", type=int, default=len(_SEEDS), help="how many of five")
    parser.add_argument("--only", default="", help="workloads whose name holds this, into out/")
    parser.add_argument("--trace", type=Path, default=_TRACE, help="Azure, BurstGPT or Mooncake")
    parser.add_argument("--revision", default=_revision(), help="what the page says was measured")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="where results are kept")
    return parser.parse_args()


def _revision() -> str:
    """Name the checkout; `-dirty` where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
