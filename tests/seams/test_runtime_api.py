"""The live limits are typed on both sides of the runtime API: what is sent is what is taken."""

from dataclasses import fields

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from paceline_sidecar import runtime_patch as bodies
from paceline_tuner import telemetry as read
from paceline_tuner.decision import Decision
from paceline_tuner.outcome import Prediction
from paceline_tuner.patch import patch_body
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.tuned_limits import TunedLimits
from paceline_wire import Limits as WireLimits


def test_the_limits_have_the_same_fields_on_both_sides() -> None:
    """A limit that one side does not know would silently stay at its default."""
    assert set(read.LimitValues.__struct_fields__) == {field.name for field in fields(WireLimits)}


def test_a_change_of_every_limit_is_one_that_the_sidecar_takes() -> None:
    """Unknown fields are refused: one wrong name would refuse the whole change."""
    held = read.LimitValues(8, 512, pace_tpot_ms=None)
    capacity = read.CapacityValues(64, 2048, 4096, 16, 4096)
    limits = read.LimitsAnswer(
        held, held, held, capacity, epoch=3, reason="", tuner=read.TunerValues()
    )
    decision = Decision(
        at=0.0,
        pod="pod",
        phase="Tracking",
        verdict="Meeting",
        binding="SLA:tpot",
        reason="TPOT binds" * 200,
        current=TunedLimits.of(held),
        wanted=None,
        chosen=TunedLimits(16, 1024, 52.0, 50.0),
        applied=True,
    )
    spec = TuningSpec(sla=SLA(tpot_p99_ms=50.0), config_hash="one")

    body = patch_body(spec, limits, decision)
    patch = msgspec.json.decode(msgspec.json.encode(body), type=bodies.LimitsPatch)

    assert (patch.step_target_ms, patch.pace_tpot_ms, patch.epoch) == (52.0, 50.0, 4)
    assert isinstance(patch.reason, str)
    assert patch.reason.startswith("TPOT binds")
    assert patch.tuner == bodies.TunerPatch("Tracking", "Meeting", "SLA:tpot")


@pytest.mark.parametrize(
    ("told", "known", "sent"),
    [(UNSET, 8.0, None), (None, 8.0, 8.0), (7.0, None, None)],
    ids=["a pod that refuses it", "a pod that takes it", "nothing known"],
)
def test_the_capacity_comes_with_a_renewal(
    told: float | UnsetType | None, known: float | None, sent: float | None
) -> None:
    """It is no limit: the epoch stays, and a pod that does not know the field is not sent it."""
    held = read.LimitValues(8, 512)
    capacity = read.CapacityValues(64, 2048, 4096, 16, 4096)
    limits = read.LimitsAnswer(
        held, held, held, capacity, epoch=3, config_hash="one", capacity_rps=told
    )
    decision = Decision(
        at=0.0,
        pod="pod",
        phase="Tracking",
        verdict="Meeting",
        binding="None",
        reason="",
        current=TunedLimits.of(held),
        wanted=None,
        chosen=TunedLimits.of(held),
        applied=True,
        prediction=Prediction(capacity_rps=known),
    )

    body = patch_body(TuningSpec(sla=SLA(tpot_p99_ms=50.0), config_hash="one"), limits, decision)
    patch = msgspec.json.decode(msgspec.json.encode(body), type=bodies.LimitsPatch)

    assert (patch.epoch, patch.capacity_rps) == (3, sent)
