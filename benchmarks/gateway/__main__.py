"""What a gateway should balance by: four policies of a real Envoy Gateway over two real pods.

Both serve the embedded model on one thread; one is stopped for half of the time. A load test of
both at once says what each serves, and each is told that as its λ*, as the operator tells a pod
what the tuner learned. The same traffic of sessions, a share of what both serve, goes through each
policy in turn, repeat by repeat, with prompts of its own. Writes benchmarks/results/gateway/;
`make pictures` draws it.

    PYTHONPATH=benchmarks:tests python -m gateway --repeats 3
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import numpy as np

from gateway.policies import POLICIES, objects, path_of
from gateway.sessions import TURNS, Asked, capacity_rps, plan, play
from gateway.slow import slowed
from local_cluster.envoy_gateway import envoy_gateway, host_class
from overload.served import Served, served
from paceline_cli.traffic.calibration import machine
from paceline_testing.free_port import free_port

RESULTS: Final = Path(__file__).parents[1] / "results" / "gateway"
_TTFT_S: Final = 1.0
_AT_ONCE: Final = 8
_TEST_S: Final = 20.0
_LEASE_S: Final = 3600.0
_WARM_S: Final = 5.0
"""The reports' weights count after a second; the caches of a new traffic are empty."""
_ENGINE: Final = {"PACELINE_ENGINE_MAX_BATCH_SIZE": str(_AT_ONCE)}
_QUERIES: Final = "paceline_prefix_query_tokens_total"
_HITS: Final = "paceline_prefix_hit_tokens_total"
_REQUESTS: Final = "paceline_requests_total"


@dataclass(frozen=True, slots=True)
class Row:
    """One policy in one repeat, after its warm seconds."""

    policy: str
    repeat: int
    requests: int
    refused: int
    ttft_p50_s: float
    ttft_p99_s: float
    goodput_rps: float
    """Requests a second whose first token came within the target."""
    prefix_hit_share: float
    slow_share: float
    """Of the requests that the pods served, the slow pod's."""
    ttfts_s: tuple[float, ...]
    """Ascending."""


def row(
    policy: str,
    repeat: int,
    asked: Sequence[Asked],
    seconds: float,
    grown: Sequence[dict[str, float]],
) -> Row:
    """Summarize; `grown` is by how much each counter of the fast and the slow pod has grown."""
    counted = [one for one in asked if one.at_s >= _WARM_S]
    ttft_s = [one.ttft_s for one in counted if one.ttft_s is not None]
    fast, slow = (pod[_REQUESTS] for pod in grown)
    return Row(
        policy=policy,
        repeat=repeat,
        requests=len(counted),
        refused=sum(one.status != 200 for one in counted),
        ttft_p50_s=float(np.percentile(ttft_s, 50)),
        ttft_p99_s=float(np.percentile(ttft_s, 99)),
        goodput_rps=sum(one <= _TTFT_S for one in ttft_s) / (seconds - _WARM_S),
        prefix_hit_share=sum(pod[_HITS] for pod in grown) / sum(pod[_QUERIES] for pod in grown),
        slow_share=slow / (fast + slow),
        ttfts_s=tuple(round(one, 3) for one in sorted(ttft_s)),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows of all policies, and how many requests a second each pod serves."""

    fast_rps: float
    slow_rps: float
    rows: tuple[Row, ...]


async def measure(repeats: int, seconds: float, share: float) -> Measured:
    """Serve, learn what the pods can, and go through the policies in turn."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pl-gateway-") as folder:
        out = Path(folder)
        for name in ("fast", "slow", "gateway"):
            (out / name).mkdir()
        async with (
            served(out / "fast", ttft_s=_TTFT_S, engine_settings=_ENGINE) as fast,
            served(out / "slow", ttft_s=_TTFT_S, engine_settings=_ENGINE) as slow,
        ):
            found = [*host_class("envoy"), *objects([fast.port, slow.port], port)]
            with ExitStack() as stack:
                stack.enter_context(envoy_gateway(out / "gateway", found, port))
                stack.enter_context(slowed(slow.pid("engine"), stopped_share=0.5))
                url = f"http://127.0.0.1:{port}"
                fast_rps, slow_rps = await _learned(fast, slow)
                sessions_per_s = share * (fast_rps + slow_rps) / TURNS
                rows = []
                for repeat in range(repeats):
                    for policy in POLICIES:
                        turns = plan(repeat, f"{policy} {repeat}", seconds, sessions_per_s)
                        before = [await pod.metrics() for pod in (fast, slow)]
                        asked = await play(url + path_of(policy), turns)
                        grown = await _grown((fast, slow), before)
                        rows.append(row(policy, repeat, asked, seconds, grown))
                        print(replace(rows[-1], ttfts_s=()), flush=True)
                return Measured(fast_rps, slow_rps, tuple(rows))


async def _learned(*pods: Served) -> list[float]:
    """Test all at once, tell each its own λ*, and return them, requests a second."""
    found = await asyncio.gather(
        *(
            capacity_rps(f"http://127.0.0.1:{pod.port}", at_once=_AT_ONCE, seconds=_TEST_S)
            for pod in pods
        )
    )
    for pod, served_rps in zip(pods, found, strict=True):
        url = f"http://127.0.0.1:{pod.admin_port}"
        headers = {"Authorization": f"Bearer {pod.token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as client:
            held = (await client.get("/runtime/limits")).raise_for_status().json()
            told = {"epoch": held["epoch"], "lease_s": _LEASE_S, "capacity_rps": served_rps}
            (await client.patch("/runtime/limits", json=told)).raise_for_status()
    return found


async def _grown(
    pods: Sequence[Served], before: Sequence[dict[str, float]]
) -> list[dict[str, float]]:
    after = [await pod.metrics() for pod in pods]
    return [
        {name: now[name] - then.get(name, 0.0) for name in now}
        for now, then in zip(after, before, strict=True)
    ]


def table(rows: Sequence[Row], where: str) -> str:
    """Write the medians over repeats, by policy."""
    heads = ("Balanced by", "p50 TTFT", "p99 TTFT", "goodput", "refused", "prefix hits")
    lines = [f"| {' | '.join(heads)} | slow pod's share |", "|---|---|---|---|---|---|---|"]
    for policy in POLICIES:
        own = [one for one in rows if one.policy == policy]

        def middle(name: str, own: Sequence[Row] = own) -> float:
            return statistics.median(float(getattr(one, name)) for one in own)

        refused = statistics.median(one.refused / one.requests for one in own)
        lines.append(
            f"| {policy} | {middle('ttft_p50_s'):.2f} s | {middle('ttft_p99_s'):.2f} s"
            f" | {middle('goodput_rps'):.2f}/s | {refused:.0%}"
            f" | {middle('prefix_hit_share'):.0%} | {middle('slow_share'):.0%} |"
        )
    return "\n".join([*lines, "", where, ""])


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(prog="gateway", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45.0, help="of each policy's traffic")
    parser.add_argument("--share", type=float, default=0.6, help="of what both pods serve")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    measured = asyncio.run(measure(options.repeats, options.seconds, options.share))
    rows, both_rps = measured.rows, measured.fast_rps + measured.slow_rps
    where = (
        f"{machine()}, load {load:.1f} before it; medians of {options.repeats} interleaved repeats"
        f" of {options.seconds:g} s, first token within {_TTFT_S:g} s. The pods serve"
        f" {measured.fast_rps:.2f} and {measured.slow_rps:.2f} requests a second and are told so;"
        f" {options.share * both_rps:.2f} come, in sessions of {TURNS} turns."
    )
    print(table(rows, where))
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "gateway.md").write_text(table(rows, where))
    record = {"where": where, "ttft_target_s": _TTFT_S, "rows": [asdict(one) for one in rows]}
    (options.results / "gateway.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
