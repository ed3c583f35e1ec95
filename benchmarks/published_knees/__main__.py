"""Fit, replay and write the page: PYTHONPATH=benchmarks python -m published_knees [--page]."""

import argparse

from published_knees import results
from published_knees.cases import CASES, KneeCase, Values
from published_knees.fit import fitted, off
from published_knees.load import COME_BACK_S
from published_knees.page import PAGE, page

_COMMAND = "PYTHONPATH=benchmarks python -m published_knees"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="published_knees", description=__doc__)
    parser.add_argument("--page", action="store_true", help="from the committed results, no run")
    parser.add_argument("--keep-fit", action="store_true", help="replay with the committed fit")
    parser.add_argument("--only", default="", help="knees whose name holds this; others stay")
    options = parser.parse_args()
    if not options.page:
        results.write(results.Knees(_COMMAND, COME_BACK_S, _knees(options)))
    PAGE.write_text(page(results.read()), encoding="utf-8")
    print(f"written: {PAGE}")


def _knees(options: argparse.Namespace) -> list[results.Knee]:
    is_part = options.keep_fit or options.only
    known = {each.name: each for each in results.read().knees} if is_part else {}
    found = []
    for case in CASES:
        kept = known.get(case.name)
        if kept is not None and options.only not in case.name:
            found.append(kept)
            continue
        has_fit = kept is not None and options.keep_fit
        found.append(_knee(case, tuple(kept.values.values()) if kept and has_fit else None))
    return found


def _knee(case: KneeCase, values: Values | None) -> results.Knee:
    values = values or fitted(case.start, lambda tried: _error(case, tried))
    told = ", ".join(f"{name} {v:g}" for name, v in zip(case.parameters, values, strict=True))
    print(f"{case.name}: {told}; off by {_error(case, values):.3f}", flush=True)
    assert case.sla.ttft_p99_ms is not None
    assert case.sla.tpot_p99_ms is not None
    return results.Knee(
        name=case.name,
        unit=case.unit,
        values=dict(zip(case.parameters, values, strict=True)),
        ttft_ms=case.sla.ttft_p99_ms,
        tpot_ms=case.sla.tpot_p99_ms,
        objective=case.sla.objective,
        fit=[
            results.FittedFigure(
                f.load, f.what, f.published, float(f"{f.simulated:.4g}"), f.is_fitted
            )
            for f in case.compare(values, True)
        ],
        fit_error=float(f"{_error(case, values):.3g}"),
        replays=[
            _replay(case, values, load, arm)
            for load in case.loads
            for arm in (results.AS_PUBLISHED, results.TUNED)
        ],
    )


def _replay(case: KneeCase, values: Values, load: float, arm: str) -> results.Replay:
    sla = case.sla if arm == results.TUNED else None
    runs = [case.play(values, load, sla, seed) for seed in case.seeds]
    found = results.summed_up(load, arm, case.sla, runs, case.first_token_s(values))
    print(
        f"{load:g} {case.unit}, {arm}: TTFT p90 {found.ttft_p90_s:.3g} s, p99"
        f" {found.ttft_p99_s:.3g} s, TPOT p99 {found.tpot_p99_ms:.0f} ms,"
        f" {found.good_per_s:.2f} good a second, {found.refused:.0%} refused,"
        f" {found.tokens_per_s:.0f} tokens/s, limits {found.batch_size}/{found.token_budget}",
        flush=True,
    )
    return found


def _error(case: KneeCase, values: Values) -> float:
    figures = [f for f in case.compare(values, False) if f.is_fitted]
    return off([f.simulated for f in figures], [f.published for f in figures])


if __name__ == "__main__":
    main()
