"""Measure orders: PYTHONPATH=... python -m order [--seeds 7] [--only long] [--out FOLDER].

The simulated engine serves each load in each order, the same requests in all of them and one order
after the other, paced by a pacer that has learned its device. A load of 1.0 is the most that the
order of arrival serves with 99 % of the requests within the SLA. Who waits beyond 0.7 of the TTFT
target is refused, as in the tuning report.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from order.cases import CASES, Case
from order.orders import ORDERS
from order.page import Row, page
from order.play import capacity_rps, play

RESULTS = Path(__file__).parents[1] / "results" / "order"
LOADS = (0.6, 0.95, 1.2)
DURATION_S = 240.0


def main() -> None:
    """Measure, and write the page and the figures."""
    parser = argparse.ArgumentParser(prog="order", description=__doc__)
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write the page of kept figures anew")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.name]
    kept = options.out / "order.json"
    if not options.page:
        options.out.mkdir(parents=True, exist_ok=True)
        rows = _rows(cases, range(options.first_seed, options.first_seed + options.seeds))
        lines = ",\n".join(msgspec.json.encode(row).decode() for row in rows)
        kept.write_text(f"[\n{lines}\n]\n")
    found = msgspec.json.decode(kept.read_bytes(), type=list[Row])
    cases = [case for case in cases if any(row.case == case.name for row in found)]
    (options.out / "order.md").write_text(page(found, cases))


def _rows(cases: Sequence[Case], seeds: Sequence[int]) -> Iterator[Row]:
    for case in cases:
        unit_rps = capacity_rps(case)
        print(f"{case.name}: a load of 1.0 is {unit_rps:g} requests a second", flush=True)
        for seed in seeds:
            for load in LOADS:
                for order in ORDERS:
                    figures = play(case, order, load * unit_rps, seed, DURATION_S)
                    yield Row(case.name, unit_rps, load, order.name, seed, figures)


if __name__ == "__main__":
    main()
