"""What the operator reads of a pod's telemetry is what the sidecar writes."""

from dataclasses import fields, is_dataclass

import msgspec
import pytest

from paceline_sidecar import runtime_bodies as written
from paceline_tuner import telemetry as read
from paceline_wire import Capacity, EngineLoad, Limits, StepModelInfo

PAIRS = {
    "telemetry": (read.Telemetry, written.TelemetryBody),
    "limits": (read.LimitsAnswer, written.LimitsBody),
    "limit": (read.LimitValues, Limits),
    "capacity": (read.CapacityValues, Capacity),
    "tuner": (read.TunerValues, written.TunerBody),
    "load": (read.Load, EngineLoad),
    "model": (read.ModelFit, StepModelInfo),
    "info": (read.EngineInfo, written.ModelBody),
    "step": (read.Step, written.StepBody),
    "request": (read.RequestRecord, written.RequestBody),
    "sketch": (read.SketchSlice, written.SketchBody),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_field_that_is_read_is_written(name: str) -> None:
    """A default would hide a name that one side spells otherwise."""
    reader, writer = PAIRS[name]
    of_samples = {"weight", "decodes"} if name in {"step", "request"} else set()

    assert _fields(reader) - of_samples <= _fields(writer)


@pytest.mark.parametrize(
    ("reader", "writer"),
    [(read.StepRow, written.StepRow), (read.RequestRow, written.RequestRow)],
    ids=["step", "request"],
)
def test_rows_have_the_same_order_at_both_ends(
    reader: type[msgspec.Struct], writer: type[msgspec.Struct]
) -> None:
    """Rows have no names: one value too few would shift all others."""
    assert reader.__struct_fields__ == writer.__struct_fields__


def test_the_engines_load_arrives_as_the_operator_types_it() -> None:
    """Values survive the way, as far as the operator reads them."""
    load = EngineLoad(
        running=2,
        waiting=1,
        waiting_tokens=9,
        oldest_waiting_s=0.5,
        kv_used_blocks=4,
        kv_cached_blocks=1,
        prefix_queries=7,
        prefix_hits=3,
        preemptions=0,
        prompt_tokens=30,
        output_tokens=20,
        gc_pause_ms=0.0,
        waiting_by_lane={},
        running_by_lane={},
        running_output_tokens=[11, 4],
    )

    arrived = msgspec.json.decode(msgspec.json.encode(load), type=read.Load)

    assert arrived.running_output_tokens == (11, 4)
    assert (arrived.running, arrived.prefix_hits, arrived.prompt_tokens) == (2, 3, 30)


def _fields(kind: type) -> set[str]:
    if is_dataclass(kind):
        return {field.name for field in fields(kind)}
    return {field.name for field in msgspec.structs.fields(kind)}
