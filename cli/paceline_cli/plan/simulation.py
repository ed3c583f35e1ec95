"""Plays requests through the simulated engine, on a device of which a step model is true."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline_cli.plan.kv_memory import KvMemory
from paceline_cli.traffic.traces import TracedRequest
from paceline_engine.hardware.devices import BLOCK_TOKENS
from paceline_sim.gaps import gap_quantile_ms, gaps_over
from paceline_sim.hardware import Hardware, Noise, StepCosts
from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import SettledPacer, SimulatedEngine
from paceline_tuner.forecast import Forecast
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import ModelFit
from paceline_tuner.tuned_limits import TunedLimits
from paceline_wire.limits import Capacity, Limits

_TAIL_Z: Final = 1.64  # q_r covers 95 of 100 steps
_MANY_TOKENS: Final = 1_000_000
_LONGER_S: Final = 600.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SimulatedLatencies:
    """Latencies of every request and gap of one pod or several, milliseconds."""

    ttft_ms: Floats
    tpot_ms: Floats
    """By request; nan where an answer has one token."""
    e2e_ms: Floats
    """By request: arrival to last token."""
    gap_counts: npt.NDArray[np.int64]
    """Gaps between tokens, by logarithmic bin (`paceline_sim.gaps`)."""
    prompt: npt.NDArray[np.int64]
    """Prompt tokens, by request."""

    def ttft(self, share: float, least: int = 1, up_to: int | None = None) -> float:
        """Return the time to first token that `share` of the requests do not exceed.

        Of those with prompts from `least` to `up_to` tokens.
        """
        is_meant = (self.prompt >= least) & (self.prompt <= (up_to or math.inf))
        return _quantile(self.ttft_ms[is_meant], share)

    def tpot(self, share: float) -> float:
        """Return the same of the mean time per output token; 0 without any."""
        return _quantile(self.tpot_ms[~np.isnan(self.tpot_ms)], share)

    def e2e(self, share: float) -> float:
        """Return the same of the whole request."""
        return _quantile(self.e2e_ms, share)

    def itl(self, share: float) -> float:
        """Return the same of the gaps between tokens, to within 1 %; 0 without any."""
        return gap_quantile_ms(self.gap_counts, share) if self.gap_counts.any() else 0.0

    def attainment(self, sla: SLA) -> float:
        """Return the lesser share, of requests or of gaps, that kept its targets."""
        is_kept = self.ttft_ms <= _first_token_targets_ms(sla, self.prompt)
        is_kept &= ~(self.tpot_ms > (sla.tpot_p99_ms or math.inf))
        is_kept &= self.e2e_ms <= (sla.e2e_p99_ms or math.inf)
        kept = float(np.mean(is_kept))
        if sla.itl_p99_ms is None or not self.gap_counts.any():
            return kept
        slow = gaps_over(self.gap_counts[None], sla.itl_p99_ms).sum()
        return min(kept, 1 - float(slow / self.gap_counts.sum()))


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    """One pod of the service: its device, memory and limits."""

    device: Hardware
    q_r: float
    """95 of 100 steps take at most so many times what the device's table says."""
    limits: TunedLimits
    memory: KvMemory
    max_model_len: int
    sla: SLA
    """With targets by prompt length, those that wait have their turn by when they are due."""

    def serve(self, requests: Sequence[TracedRequest], seed: int = 1) -> SimulatedLatencies:
        """Serve all requests in order of arrival; nothing is shed. Chance follows the seed."""
        return _latencies(self._run(self.limits, requests, seed))

    def serve_alone(self, requests: Sequence[TracedRequest]) -> SimulatedLatencies:
        """Serve each request with the whole pod to itself, one after the other."""
        limits = replace(self.limits, batch_size=1)
        at_once = [replace(request, at_s=0.0) for request in requests]
        engine = self._run(limits, at_once, seed=1)
        jobs = engine.jobs
        return replace(
            _latencies(engine),
            ttft_ms=np.asarray((jobs["first_s"] - jobs["scheduled_s"]) * 1e3, np.float64),
            e2e_ms=np.asarray((jobs["last_s"] - jobs["scheduled_s"]) * 1e3, np.float64),
        )

    def _run(
        self, limits: TunedLimits, requests: Sequence[TracedRequest], seed: int
    ) -> SimulatedEngine:
        memory = self.memory
        engine = SimulatedEngine(
            self.device,
            _offered(requests, self.sla),
            capacity=Capacity(
                limits.batch_size,
                limits.token_budget,
                memory.num_blocks,
                BLOCK_TOKENS,
                self.max_model_len,
            ),
            limits=Limits(
                limits.batch_size,
                limits.token_budget,
                limits.step_target_ms,
                pace_tpot_ms=limits.pace_tpot_ms,
            ),
            pacer=SettledPacer(self.q_r, memory.device.min_prefill),
            seed=seed,
        )
        while len(engine.ended) < len(requests):
            engine.run_until(engine.now + _LONGER_S)
        return engine


def simulated_pod(
    model: ModelFit, limits: TunedLimits, memory: KvMemory, max_model_len: int, sla: SLA
) -> SimulatedPod:
    """Build a pod on a device whose steps take what the model says, and vary as its q_r says."""
    forecast, q_r = Forecast(model), max(model.q_r, 1.0)
    dense = [
        forecast.step_ms(decode=0, prefill=tokens, context=0)
        for tokens in range(limits.token_budget + 1)
    ]
    device = Hardware(
        name="",
        device=memory.device.name,
        size=memory.size,
        dtype="",
        num_kv_tokens=memory.tokens,
        dense_ms=np.array(dense),
        costs=_costs(forecast, limits),
        noise=Noise(sigma=math.log(q_r) / _TAIL_Z, correlation=0.0, spike_chance=0.0),
    )
    return SimulatedPod(device, q_r, limits, memory, max_model_len, sla)


def _costs(forecast: Forecast, limits: TunedLimits) -> StepCosts:
    """Take contexts at the speed of a full batch, and pairs at that of the largest step."""
    batch, budget = limits.batch_size, limits.token_budget

    def each_ms(tokens: int, *, context: float = 0.0, attention: float = 0.0) -> float:
        with_them = forecast.step_ms(decode=tokens, prefill=0, context=context, attention=attention)
        without = forecast.step_ms(decode=tokens, prefill=0, context=0)
        return (with_them - without) / _MANY_TOKENS

    return StepCosts(
        context_ms=each_ms(batch, context=_MANY_TOKENS),
        few_rows=0.0,
        rows_scale=1.0,
        long_context=0.0,
        context_scale=1.0,
        pair_ms=each_ms(budget, attention=_MANY_TOKENS),
        query_tile=1,
        row_ms=0.0,
        mixed_ms=0.0,
        graph_grid=1,
    )


def joined(parts: Sequence[SimulatedLatencies]) -> SimulatedLatencies:
    """Put together what several pods served."""
    return SimulatedLatencies(
        np.concatenate([part.ttft_ms for part in parts]),
        np.concatenate([part.tpot_ms for part in parts]),
        np.concatenate([part.e2e_ms for part in parts]),
        np.sum([part.gap_counts for part in parts], axis=0),
        np.concatenate([part.prompt for part in parts]),
    )


def _offered(requests: Sequence[TracedRequest], sla: SLA) -> Requests:
    # Blocks of a trace that were drawn anew may overlap by a rounding.
    ordered = sorted(requests, key=lambda request: request.at_s)
    nothing = np.zeros(len(ordered), np.int64)
    at_s = np.array([request.at_s for request in ordered], np.float64)
    prompt = np.array([request.prompt for request in ordered], np.int64)
    has_classes = bool(sla.ttft_by_prompt_tokens)
    return Requests(
        at_s,
        prompt,
        np.array([request.output for request in ordered], np.int64),
        cached=nothing,
        lane=nothing.astype(np.int8),
        turn_s=at_s + _first_token_targets_ms(sla, prompt) / 1e3 if has_classes else None,
    )


def _latencies(engine: SimulatedEngine) -> SimulatedLatencies:
    jobs = engine.jobs
    e2e_ms = np.asarray((jobs["last_s"] - jobs["arrival_s"]) * 1e3, np.float64)
    return SimulatedLatencies(
        engine.ttft_ms,
        engine.tpot_ms,
        e2e_ms,
        engine.gap_counts.sum(axis=0),
        np.asarray(jobs["prompt"], np.int64),
    )


def _first_token_targets_ms(sla: SLA, prompt: npt.NDArray[np.int64]) -> Floats:
    """Give each prompt's target; infinite where none is declared."""
    places = np.searchsorted(sla.shortest_prompts, prompt, side="right") - 1
    targets = [sla.ttft_ms(least) or math.inf for least in sla.shortest_prompts]
    return np.asarray(np.array(targets)[np.maximum(places, 0)], np.float64)


def _quantile(values: Floats, share: float) -> float:
    """Nearest rank; 0 without any."""
    return float(np.quantile(values, share, method="inverted_cdf")) if len(values) else 0.0
