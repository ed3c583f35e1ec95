"""PodClient in front of a plant: telemetry and limits as a sidecar gives them, without HTTP."""

import bisect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

import msgspec

from paceline_testing.plant import Job, Plant
from paceline_tuner import telemetry as answers
from paceline_tuner.pods import PodRefusedError, PodUnreachableError
from paceline_tuner.service_target import PodTarget
from paceline_wire import Coefficients
from paceline_wire.limits import clamp

Answer = TypeVar("Answer", answers.ModelFit, answers.Step)
ALPHA = 0.01
_LOG_GAMMA = math.log((1 + ALPHA) / (1 - ALPHA))
_SLICE_S = 5
_NUM_SLICES = 24


@dataclass
class PlantPod:
    """One pod. Every answer is a copy, as it would be over the wire."""

    plant: Plant
    instance: str = "a"
    config_hash: str = ""
    engine_version: str = "1"
    is_down: bool = False
    """Telemetry and limits cannot be reached."""
    is_blind: bool = False
    """Only telemetry cannot be reached."""
    knows_slack: bool = True
    """Its engine can pace each request."""
    bodies: list[dict[str, object]] = field(default_factory=list)
    """Every accepted change and renewal."""

    async def get_telemetry(self, pod: PodTarget, since: int) -> answers.Telemetry:
        """Answer as a sidecar does; `since` holds how many of each kind were read."""
        if self.is_down or self.is_blind:
            raise PodUnreachableError(f"pod {pod.name}: no answer")
        plant = self.plant
        steps_read, jobs_read = divmod(since, 1 << 32)
        return answers.Telemetry(
            instance=self.instance,
            now=plant.now,
            next=(len(plant.steps) << 32) + len(plant.ended),
            lost=0,
            ready=True,
            limits=self._limits(),
            load=answers.Load(
                running=len(plant.running),
                waiting=len(plant.waiting),
                waiting_tokens=sum(
                    job.prompt - job.computed for job in (*plant.waiting, *plant.running)
                ),
                prompt_tokens=plant.prompt_tokens,
                output_tokens=plant.output_tokens,
                running_output_tokens=tuple(job.tokens for job in plant.running)[:256],
            ),
            model=_convert(plant.pacer.info(), answers.ModelFit),
            info=answers.EngineInfo(
                name="m",
                device=plant.device,
                engine_version=self.engine_version,
                features=("block_size=16",),
            ),
            steps=tuple(_convert(step, answers.Step) for step in plant.steps[steps_read:]),
            requests=tuple(
                _record(seq, job)
                for seq, job in enumerate(plant.ended[jobs_read:], start=jobs_read + 1)
            ),
            sketches=self._sketches(),
        )

    async def patch_limits(
        self, pod: PodTarget, body: Mapping[str, object]
    ) -> answers.LimitsAnswer:
        """Change what the body names, unless its epoch is old."""
        if self.is_down:
            raise PodUnreachableError(f"pod {pod.name}: no answer")
        plant, epoch = self.plant, body["epoch"]
        assert isinstance(epoch, int)
        if epoch < plant.epoch or (epoch == plant.epoch and len(body) > 2):
            raise PodRefusedError(pod.name, 409, "epoch is old")
        if "pace_tpot_ms" in body and not self.knows_slack:
            raise PodRefusedError(pod.name, 422, "pace_tpot_ms: unknown field")
        self.bodies.append(dict(body))
        known = {name: value for name, value in body.items() if name in asdict(plant.limits)}
        plant.limits, _ = clamp(replace(plant.limits, **known), plant.capacity)  # type: ignore[arg-type]  # JSON's values
        plant.epoch = epoch
        if "coefficients" in body:
            # As the wire carries them: what cannot be read there must not pass here.
            given = msgspec.json.decode(msgspec.json.encode(body["coefficients"]))
            plant.pacer.seed(Coefficients(**given))
        self.config_hash = str(body.get("config_hash", self.config_hash))
        return self._limits()

    def _limits(self) -> answers.LimitsAnswer:
        values = asdict(self.plant.limits)
        if not self.knows_slack:
            del values["pace_tpot_ms"]
        held = msgspec.convert(values, answers.LimitValues)
        return answers.LimitsAnswer(
            requested=held,
            effective=held,
            certified=held,
            capacity=msgspec.convert(asdict(self.plant.capacity), answers.CapacityValues),
            epoch=self.plant.epoch,
            config_hash=self.config_hash,
            instance=self.instance,
        )

    def _sketches(self) -> tuple[answers.SketchSlice, ...]:
        slices: dict[int, dict[str, int]] = {}
        begin = self.plant.now - _NUM_SLICES * _SLICE_S
        gaps = self.plant.gaps
        for at, gap_ms in gaps[bisect.bisect_left(gaps, (begin, 0.0)) :]:
            bins = slices.setdefault(int(at // _SLICE_S) * _SLICE_S, {})
            place = str(math.ceil(math.log(gap_ms) / _LOG_GAMMA))
            bins[place] = bins.get(place, 0) + 1
        return tuple(
            answers.SketchSlice("itl_ms", "interactive", float(start), ALPHA, 0, slices[start])
            for start in sorted(slices)[-_NUM_SLICES:]
        )


def _record(seq: int, job: Job) -> answers.RequestRecord:
    is_ok, gaps = job.outcome == "ok", job.tokens - 1
    return answers.RequestRecord(
        seq=seq,
        arrived_at=job.arrived_at,
        finished_at=job.last_at,
        prompt_tokens=job.prompt,
        output_tokens=job.tokens,
        outcome=job.outcome,
        ttft_ms=(job.first_at - job.arrived_at) * 1e3 if is_ok else None,
        tpot_ms=(job.last_at - job.first_at) * 1e3 / gaps if is_ok and gaps else None,
    )


def _convert(value: msgspec.Struct, kind: type[Answer]) -> Answer:
    return msgspec.convert(msgspec.structs.asdict(value), kind)
