"""The live limits are typed on both sides of the runtime API: what is sent is what is taken."""

from dataclasses import fields

import msgspec

from paceline_sidecar import runtime_patch as told
from paceline_tuner import telemetry as read
from paceline_tuner.decision import Decision
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
    limits = read.LimitsAnswer(held, held, held, capacity, epoch=3, reason="")
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
    patch = msgspec.json.decode(msgspec.json.encode(body), type=told.LimitsPatch)

    assert (patch.step_target_ms, patch.pace_tpot_ms, patch.epoch) == (52.0, 50.0, 4)
    assert isinstance(patch.reason, str)
    assert patch.reason.startswith("TPOT binds")
