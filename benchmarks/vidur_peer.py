"""Our simulator's queue beside Vidur's: the same requests and the same step times in both.

Vidur (MLSys 2024, PyPI `vidur`) is a simulator of others, with a scheduler of its own. It carries
no profiles; here it is given this repository's step times, without noise, as its predictor of
execution time. What differs then is the scheduling alone: who is admitted when, how a prompt is cut
into chunks, which steps are run. It is not a dependency:

    python -m pip install --no-deps vidur==0.0.26
    python -m pip install pandas scikit-learn wandb ddsketch plotly_express seaborn fasteners \
        paretoset randomname kaleido
    PYTHONPATH=benchmarks python benchmarks/vidur_peer.py

It writes benchmarks/results/tuning/vidur.md.
"""

# pyright: reportMissingImports=false
# Vidur is not a dependency.

import argparse
import json
import tempfile
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from vidur._native.entities import ExecutionTime
from vidur.config import (
    CacheConfig,
    ClusterConfig,
    LORGlobalSchedulerConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
)
from vidur.entities import Request
from vidur.events import RequestArrivalEvent
from vidur.execution_time_predictor import BaseExecutionTimePredictor
from vidur.execution_time_predictor.execution_time_predictor_registry import (
    ExecutionTimePredictorRegistry,
)
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType

from paceline_engine.hardware.devices import BLOCK_TOKENS
from paceline_sim.hardware import H100_8B, Hardware, Noise
from paceline_sim.published import A100_8B_PROFILED
from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.steps import step_ms
from paceline_wire.limits import Limits
from paceline_wire.step_cost import chunk_attention
from tune_report.arrivals import arrivals, constant
from tune_report.mixes import CODE, CONVERSATION, Mix

_OTHER_PARTS = (0.0,) * 13
"""Of an execution time: Vidur adds up fourteen, and the table knows their sum."""
QUIET = Noise(sigma=0.0, correlation=0.0, spike_chance=0.0)
SECONDS = 120.0
Floats = npt.NDArray[np.float64]
CASES = (
    (A100_8B_PROFILED, CONVERSATION, 3.0, 128, 512),
    (A100_8B_PROFILED, CONVERSATION, 5.5, 128, 768),
    (A100_8B_PROFILED, CONVERSATION, 7.5, 128, 1024),
    (H100_8B, CONVERSATION, 10.0, 192, 512),
    (H100_8B, CONVERSATION, 17.0, 256, 1280),
    (H100_8B, CODE, 12.0, 128, 1024),
)
"""Device, lengths, requests a second, max batch size, token budget."""
RESULTS = Path(__file__).parent / "results" / "tuning"
HEAD = (
    "Device",
    "Mix",
    "req/s",
    "batch/tokens",
    "TTFT p50, ours ms",
    "TTFT p50",
    "TTFT p99",
    "TPOT p50",
    "TPOT p99",
    "last end",
)
_TEXT = """\
# The simulated engine's queue beside Vidur's

The same requests ({seconds:g} s of Poisson arrivals), step times without noise and limits in
`benchmarks/engines/` and in Vidur 0.0.26 with its chunked-prefill scheduler (Sarathi). Vidur's
figure over ours, minus one: what differs is the scheduling alone.

{table}
Made by `PYTHONPATH=benchmarks python benchmarks/vidur_peer.py`.
"""


def main() -> None:
    """Write the table, as Markdown and as JSON."""
    parser = argparse.ArgumentParser(description="The simulated engine's queue beside Vidur's.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    rows = [_row(*case) for case in CASES]
    lines = [HEAD, ("---",) * len(HEAD), *(row["shown"] for row in rows)]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    (asked.out / "vidur.md").write_text(_TEXT.format(table=table, seconds=SECONDS))
    (asked.out / "vidur.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(table)


def _row(hardware: Hardware, mix: Mix, rps: float, batch: int, budget: int) -> dict[str, Any]:
    device = replace(hardware, noise=QUIET)
    requests = _requests(mix, rps)
    ours = _ours(device, requests, batch, budget)
    theirs = _theirs(device, requests, batch, budget)
    found = {
        f"{name}_{rank}": float(np.quantile(theirs[name], q) / np.quantile(ours[name], q) - 1)
        for name in ("ttft_ms", "tpot_ms")
        for rank, q in (("p50", 0.5), ("p99", 0.99))
    }
    found["makespan"] = float(theirs["end_s"].max() / ours["end_s"].max() - 1)
    first = f"{np.median(ours['ttft_ms']):,.0f}"
    shown = (hardware.name, mix.name, f"{rps:g}", f"{batch}/{budget}", first)
    return {
        "shown": (*shown, *(f"{value:+.1%}" for value in found.values())),
        "requests": len(requests),
        "vidur_over_ours": found,
    }


def _requests(mix: Mix, rps: float) -> Requests:
    random = np.random.default_rng(3)
    at_s = arrivals(random, constant(rps), SECONDS)
    prompt, output, _ = mix.draw(random, len(at_s))
    nothing = np.zeros(len(at_s), np.int64)
    return Requests(at_s, prompt, output, nothing, nothing.astype(np.int8))


def _ours(hardware: Hardware, requests: Requests, batch: int, budget: int) -> dict[str, Floats]:
    engine = SimulatedEngine(
        hardware,
        requests,
        capacity=hardware.capacity(max_batch_size=1024, max_token_budget=8192),
        limits=Limits(batch, budget),
        pacer=None,
        seed=0,
    )
    while len(engine.ended) < len(requests):
        engine.run_until(engine.now + 60.0)
    return {
        "ttft_ms": engine.ttft_ms,
        "tpot_ms": engine.tpot_ms[~np.isnan(engine.tpot_ms)],
        "end_s": engine.finished_s,
    }


def _theirs(hardware: Hardware, requests: Requests, batch: int, budget: int) -> dict[str, Floats]:
    # Under the name of its default, whose profiles are not there.
    kind = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(kind)
    ExecutionTimePredictorRegistry.register(kind, _predictor(hardware))
    made = [
        Request(float(at_s), int(prompt), int(output))
        for at_s, prompt, output in zip(
            requests.arrival_s, requests.prompt, requests.output, strict=True
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        _Served(_config(hardware, batch, budget, folder), made).run()
    arrived = requests.arrival_s
    first = np.array([one.prefill_completed_at for one in made])
    end = np.array([one.completed_at for one in made])
    gaps = requests.output - 1
    return {
        "ttft_ms": (first - arrived) * 1e3,
        "tpot_ms": ((end - first)[gaps > 0] / gaps[gaps > 0]) * 1e3,
        "end_s": end,
    }


class _Served(Simulator):  # type: ignore[misc] # Vidur is not installed where types are checked
    """Vidur's simulator of requests that are given, without its reports."""

    def __init__(self, config: SimulationConfig, requests: list[Request]) -> None:
        self._served = requests
        super().__init__(config)

    def _init_event_queue(self) -> None:
        for request in self._served:
            self._add_event(RequestArrivalEvent(request.arrived_at, request))

    def _write_output(self) -> None:
        pass


def _config(hardware: Hardware, batch: int, budget: int, folder: str) -> SimulationConfig:
    return SimulationConfig(
        log_level="error",
        cluster_config=ClusterConfig(
            replica_config=ReplicaConfig(
                num_pipeline_stages=1, tensor_parallel_size=1, network_device="h100_dgx"
            ),
            cache_config=CacheConfig(
                block_size=BLOCK_TOKENS,
                num_blocks=hardware.num_kv_tokens // BLOCK_TOKENS,
                watermark_blocks_fraction=0.0,
            ),
            # The other ones count replicas from 0, and replicas count on from run to run.
            global_scheduler_config=LORGlobalSchedulerConfig(),
            replica_scheduler_config=SarathiSchedulerConfig(
                batch_size_cap=batch, chunk_size=budget
            ),
        ),
        metrics_config=MetricsConfig(
            write_metrics=False, enable_chrome_trace=False, output_dir=folder
        ),
    )


def _predictor(hardware: Hardware) -> type[BaseExecutionTimePredictor]:
    """A predictor of Vidur's that tells the simulated engine's step times."""
    costs = np.array(astuple(hardware.costs), np.float64)

    class Table(BaseExecutionTimePredictor):  # type: ignore[misc] # as above
        def get_execution_time(self, batch: Any, pipeline_stage: int) -> Any:  # noqa: ARG002 - there is one
            decode = prefill = context = attention = prompts = 0
            rows = zip(batch.requests, batch.num_q_tokens, batch.num_kv_tokens, strict=True)
            for request, count, held in rows:
                if request.is_prefill_complete:
                    decode, context = decode + 1, context + held
                else:
                    prefill, prompts = prefill + count, prompts + 1
                    attention += int(chunk_attention(count, held - count))
            ms = step_ms(
                hardware.dense_ms, costs, decode, prefill, context, attention, decode + prompts
            )
            return ExecutionTime(1, ms, *_OTHER_PARTS)

    # Its parts are asked for by the method above alone, which does not ask.
    Table.__abstractmethods__ = frozenset()
    return Table


if __name__ == "__main__":
    main()
