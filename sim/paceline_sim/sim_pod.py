"""SimPod: a pod around a simulated engine, as the tuner's `PodClient` sees one. No HTTP.

Limits behave as in the engine, whose `engine/control.py` it calls: a growing epoch, a lease, and a
return to what was certified when the lease runs out. Faults are switched on and off while it runs.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict

import msgspec
import numpy as np

from paceline_engine.engine.control import LimitsControl
from paceline_engine.pacing import NoPacer
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import FAILED, FIRST_BIN, OK, SHED, SLICE_S, Real, Whole
from paceline_tuner import telemetry as answers
from paceline_tuner.pods import PodRefusedError, PodUnreachableError
from paceline_tuner.service_target import PodTarget
from paceline_wire import Limits, LimitsState, SetLimits

_ALPHA = 0.01
_numbers = itertools.count(1)
_SKETCH_SLICES = 24
_MAX_LENGTHS = 256
# Those after it tell of a draft model, which is not simulated.
_STEP_FIELDS = answers.Step.__struct_fields__.index("kv_used") + 1
_OUTCOMES = {OK: "ok", SHED: "shed", FAILED: "failed"}
_LANES = ("interactive", "batch")
_LIMITS = (
    "max_batch_size",
    "token_budget",
    "step_target_ms",
    "pace_tpot_ms",
    "interactive_share",
    "batch_share",
)


class SimPod:
    """One pod. Drive it by `run_until`, which also lets leases run out on time."""

    def __init__(
        self, engine: SimulatedEngine, *, instance: str = "", engine_version: str = ""
    ) -> None:
        """Put a pod around `engine`, whose limits it owns from now on."""
        self.engine = engine
        self.instance = instance or f"sim-{next(_numbers)}"
        self.engine_version = engine_version
        self.config_hash = ""
        self.is_down = False
        """Neither telemetry nor limits can be reached."""
        self.is_blind = False
        """Telemetry cannot be reached, limits can."""
        self.bodies: list[dict[str, object]] = []
        """Every accepted change and renewal."""
        self._control = LimitsControl(engine.limits, engine.capacity)
        self._slices: dict[int, answers.SketchSlice] = {}

    def run_until(self, t_s: float) -> None:
        """Step the engine; limits return to the certified ones when their lease has run out."""
        expires_at = self._control.lease_expires_at
        if expires_at is not None and expires_at <= t_s:
            self.engine.run_until(expires_at)
            self._control.expire(
                now=self.engine.now, next_step=self._next_step, decodes=self._decodes
            )
            self.engine.limits = self._control.limits
        self.engine.run_until(t_s)

    async def get_telemetry(self, pod: PodTarget, since: int) -> answers.Telemetry:
        """Answer what is new since a `next`, which counts steps and ended requests apart."""
        if self.is_down or self.is_blind:
            raise PodUnreachableError(f"pod {pod.name}: no answer")
        engine = self.engine
        steps_read, ended_read = divmod(since, 1 << 32)
        info = engine.hardware.model_info()
        return answers.Telemetry(
            instance=self.instance,
            now=engine.now,
            next=(len(engine.steps) << 32) + len(engine.ended),
            lost=0,
            ready=True,
            limits=self._answer(self._state()),
            load=self._load(),
            model=msgspec.convert(
                msgspec.structs.asdict((engine.pacer or NoPacer()).info()), answers.ModelFit
            ),
            info=answers.EngineInfo(
                name=info.name,
                num_parameters=info.num_parameters,
                weight_bytes=info.weight_bytes,
                kv_bytes_per_token=info.kv_bytes_per_token,
                device=info.device,
                dtype=info.dtype,
                engine_version=self.engine_version,
            ),
            steps=tuple(
                answers.Step(*fields[:_STEP_FIELDS])
                for fields in engine.steps[steps_read:].tolist()
            ),
            requests=self._requests(ended_read),
            sketches=self._sketches(),
        )

    async def patch_limits(
        self, pod: PodTarget, body: Mapping[str, object]
    ) -> answers.LimitsAnswer:
        """Change what the body names under a greater epoch; an equal one renews the lease."""
        if self.is_down:
            raise PodUnreachableError(f"pod {pod.name}: no answer")
        named = {name: value for name, value in body.items() if name in _LIMITS}
        wanted = msgspec.convert(
            {
                "call": 0,
                "epoch": body["epoch"],
                "lease_s": body.get("lease_s"),
                "certified": body.get("certified", False),
                "clear_step_target": named.get("step_target_ms", 0.0) is None,
                "clear_pace_tpot": named.get("pace_tpot_ms", 0.0) is None,
                "coefficients": body.get("coefficients"),
                **named,
            },
            SetLimits,
        )
        is_new = wanted.epoch > self.engine.epoch
        state = self._control.change(
            wanted, now=self.engine.now, next_step=self._next_step, decodes=self._decodes
        )
        if state.error is not None:
            status = 409 if wanted.epoch < state.epoch else 422
            raise PodRefusedError(pod.name, status, state.error)
        self.bodies.append(dict(body))
        self.config_hash = str(body.get("config_hash", self.config_hash))
        self.engine.limits, self.engine.epoch = self._control.limits, self._control.epoch
        seed, pacer = wanted.coefficients, self.engine.pacer or NoPacer()
        if seed is not None and is_new and not pacer.seed(seed):
            state = msgspec.structs.replace(state, ignored=["coefficients"])
        return self._answer(state)

    @property
    def _next_step(self) -> int:
        return len(self.engine.steps)

    @property
    def _decodes(self) -> int:
        return int(self.engine.totals[0]["decode"])

    def _state(self) -> LimitsState:
        return self._control.state(call=0, decodes=self._decodes)

    def _answer(self, state: LimitsState) -> answers.LimitsAnswer:
        expires_at = state.lease_expires_at
        return answers.LimitsAnswer(
            requested=_values(state.requested),
            effective=_values(state.effective),
            certified=_values(state.certified),
            capacity=answers.CapacityValues(**asdict(self.engine.capacity)),
            epoch=state.epoch,
            since_step=state.since_step,
            lease_expires_s=None if expires_at is None else expires_at - self.engine.now,
            lease_lost=state.lease_lost,
            clamped=tuple(state.clamped),
            ignored=tuple(state.ignored),
            config_hash=self.config_hash,
            instance=self.instance,
        )

    def _load(self) -> answers.Load:
        engine, totals = self.engine, self.engine.totals[0]
        return answers.Load(
            running=engine.running,
            waiting=engine.waiting,
            waiting_tokens=engine.waiting_tokens,
            oldest_waiting_s=engine.oldest_waiting_s,
            kv_used_blocks=int(totals["num_blocks"] - totals["free_blocks"]),
            prefix_queries=int(totals["prefix_queries"]),
            prefix_hits=int(totals["prefix_hits"]),
            preemptions=int(totals["preemptions"]),
            prompt_tokens=int(totals["prompt_tokens"]),
            output_tokens=int(totals["output_tokens"]),
            running_output_tokens=_sampled(engine.running_output_tokens),
        )

    def _requests(self, read: int) -> tuple[answers.RequestRecord, ...]:
        engine = self.engine
        chosen = engine.ended[read:]
        jobs = engine.jobs[chosen]
        columns = zip(
            jobs["arrival_s"].tolist(),
            jobs["finished_s"].tolist(),
            jobs["prompt"].tolist(),
            jobs["tokens"].tolist(),
            (_OUTCOMES[code] for code in jobs["outcome"].tolist()),
            (_LANES[lane] for lane in jobs["lane"].tolist()),
            _present((jobs["scheduled_s"] - jobs["arrival_s"]) * 1e3),
            _present(engine.ttft_ms[chosen]),
            _present(engine.tpot_ms[chosen]),
            _present(engine.itl_max_ms[chosen]),
            jobs["hits"].tolist(),
            jobs["epoch"].tolist(),
            strict=True,
        )
        return tuple(
            answers.RequestRecord(seq, *fields)
            for seq, fields in enumerate(columns, start=read + 1)
        )

    def _sketches(self) -> tuple[answers.SketchSlice, ...]:
        counts = self.engine.gap_counts
        newest = len(counts) - 1
        wanted = range(max(0, newest - _SKETCH_SLICES + 1), newest + 1)
        # Rows before the newest one are complete: they are read once.
        self._slices = {row: self._slices[row] for row in wanted if row in self._slices}
        for row in wanted:
            if row not in self._slices:
                self._slices[row] = _sketch(row, counts[row])
        found = tuple(piece for piece in self._slices.values() if piece.bins)
        del self._slices[newest]
        return found


def _sampled(lengths: list[int]) -> tuple[int, ...]:
    """At most 256 of them, evenly spread, as the engine reports them."""
    return tuple(lengths[:: max(1, math.ceil(len(lengths) / _MAX_LENGTHS))])


def _sketch(row: int, counts: Whole) -> answers.SketchSlice:
    columns = np.flatnonzero(counts)
    indices = (columns + FIRST_BIN).tolist()
    bins = dict(zip(indices, counts[columns].tolist(), strict=True))
    return answers.SketchSlice("itl_ms", "interactive", row * SLICE_S, _ALPHA, 0, bins)


def _values(limits: Limits) -> answers.LimitValues:
    return msgspec.convert(asdict(limits), answers.LimitValues)


def _present(values: Real) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
