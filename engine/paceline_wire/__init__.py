"""Every message between sidecar and engine, as msgspec structs in MessagePack.

One ZeroMQ pair on `ipc://{run_dir}/engine.sock`: the engine binds a ROUTER, the sidecar connects
a DEALER and sends `Hello` until the engine answers. The engine answers with `Loading` while the
model loads, then with `Ready`; it sends `Failed` before it exits for a reason that a person can
act on. Times named `*_at` are CLOCK_MONOTONIC seconds, which all processes of a host share.

This package is all that the sidecar imports of the engine.
"""

from collections.abc import Callable

import msgspec

from paceline_wire.adapters import AdaptersState, LoadAdapter, UnloadAdapter
from paceline_wire.life import Failed, Hello, Loading, ModelInfo, Ready, StepProfile
from paceline_wire.limits import Capacity, Coefficients, Limits, LimitsState, SetLimits
from paceline_wire.profiling import ProfileSteps, StepTrace
from paceline_wire.requests import (
    Abort,
    FinishReason,
    Grammar,
    Output,
    Outputs,
    Pooling,
    Sampling,
    Submit,
    TokenLogprobs,
)
from paceline_wire.step_cost import MeasuredStep, StepFeatures
from paceline_wire.telemetry import (
    EngineLoad,
    EngineTelemetry,
    Origin,
    StepModelInfo,
    StepRecord,
    WhyEager,
)

__all__ = [
    "Abort",
    "AdaptersState",
    "Capacity",
    "Coefficients",
    "EngineLoad",
    "EngineTelemetry",
    "Failed",
    "FinishReason",
    "FromEngine",
    "Grammar",
    "Hello",
    "Limits",
    "LimitsState",
    "LoadAdapter",
    "Loading",
    "MeasuredStep",
    "ModelInfo",
    "Origin",
    "Output",
    "Outputs",
    "Pooling",
    "ProfileSteps",
    "Ready",
    "Sampling",
    "SetLimits",
    "StepFeatures",
    "StepModelInfo",
    "StepProfile",
    "StepRecord",
    "StepTrace",
    "Submit",
    "ToEngine",
    "TokenLogprobs",
    "UnloadAdapter",
    "WhyEager",
    "decode_from_engine",
    "decode_to_engine",
    "encode",
]

ToEngine = Hello | Submit | Abort | SetLimits | LoadAdapter | UnloadAdapter | ProfileSteps
FromEngine = (
    Loading | Failed | Ready | LimitsState | AdaptersState | Outputs | EngineTelemetry | StepTrace
)

encode = msgspec.msgpack.Encoder().encode
decode_to_engine: Callable[[bytes], ToEngine] = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine: Callable[[bytes], FromEngine] = msgspec.msgpack.Decoder(FromEngine).decode
