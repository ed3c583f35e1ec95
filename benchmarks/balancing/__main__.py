"""Compare balancing policies on simulated fleets: PYTHONPATH=benchmarks python -m balancing.

It writes benchmarks/results/balancing/ and docs/balancing.md; with --page it only writes the page,
from the committed results. The pods' λ*, limits and margin are found by the tuner itself first.
Nothing depends on the machine's speed.
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from balancing import results
from balancing.fleet import Kind, play, traffic
from balancing.page import PAGE, page
from balancing.pods import FAST, half_as_fast
from balancing.policies import COARSE, NAMES, REPORTING, a_gateway
from balancing.settle import settle

REPLICAS: Final = 50
SLOW: Final = 10
LOADS: Final = (0.7, 0.85, 0.95)
SEEDS: Final = (1, 2)
_FIRST_RPS: Final = (2.5, 1.0)


def main() -> None:
    """Settle a pod of each kind, run all, and write the page."""
    parser = argparse.ArgumentParser(prog="balancing", description=__doc__)
    parser.add_argument("--page", action="store_true", help="from the committed results, no run")
    if not parser.parse_args().page:
        _run()
    fleets = (results.read(results.ALIKE), results.read(results.MIXED))
    PAGE.write_text(page(*fleets), encoding="utf-8")
    print(f"written: {PAGE}")


def _run() -> None:
    fast, slow = FAST, half_as_fast(FAST)
    settled = [
        asyncio.run(settle(device, REPLICAS, first_rps))
        for device, first_rps in zip((fast, slow), _FIRST_RPS, strict=True)
    ]
    print(settled, flush=True)
    alike = [Kind(fast, settled[0], REPLICAS)]
    mixed = [Kind(fast, settled[0], REPLICAS - SLOW), Kind(slow, settled[1], SLOW)]
    # Among pods that are alike all weights are equal, however coarse.
    fleets = (
        _Fleet(results.ALIKE, alike, tuple(name for name in NAMES if name != COARSE)),
        _Fleet(results.MIXED, mixed, NAMES),
    )
    for seed in SEEDS:
        for fleet in fleets:
            fleet.play(seed)


@dataclass(slots=True)
class _Fleet:
    """One fleet, by every policy at every load."""

    name: str
    kinds: Sequence[Kind]
    policies: Sequence[str]
    runs: dict[tuple[str, float], list[results.Run]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def play(self, seed: int) -> None:
        """Play all of one seed, and write what is known until now."""
        for load in LOADS:
            offered = traffic(self.kinds, load, seed)
            for policy in self.policies:
                gateway = a_gateway(policy, seed)
                found = play(self.kinds, gateway, offered, seed, has_reports=policy in REPORTING)
                self.runs[policy, load].append(found)
                print(
                    f"{self.name}, {load:.0%}, {policy}, seed {seed}: {found.attained:.2%} within"
                    f" the SLA, TTFT p99 {found.ttft_p99_s:.2f} s, {found.hits:.0%} hits",
                    flush=True,
                )
        parts = [
            results.Part(
                kind.hardware.name,
                kind.count,
                kind.settled.capacity_rps,
                kind.settled.limits.max_batch_size,
                kind.settled.limits.token_budget,
            )
            for kind in self.kinds
        ]
        rows = [results.Row(policy, load, each) for (policy, load), each in self.runs.items()]
        results.write(results.Results(self.name, parts, rows))


if __name__ == "__main__":
    main()
