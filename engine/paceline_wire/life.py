"""How sidecar and engine meet: greeting, loading, ready, failed."""

import msgspec

from paceline_wire.limits import LimitsState
from paceline_wire.step_cost import MeasuredStep


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The sidecar is here; the engine answers `Loading`, `Ready` or `Failed`."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """The model is being loaded."""

    stage: str
    fraction: float
    """0 to 1."""
    has_tokenizer: bool = False
    """The tokenizer's files lie in the run directory already: the sidecar need not wait."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot serve and is about to exit."""

    reason: str
    """One of the condition reasons: DownloadFailed, RevisionNotFound, DoesNotFit, ..."""
    message: str


class ModelInfo(msgspec.Struct, frozen=True):
    """What the sidecar must know of the model; the tokenizer's files lie in the run directory."""

    name: str
    family: str
    revision: str
    dtype: str
    device: str
    num_parameters: int
    vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_ids: list[int]
    kv_bytes_per_token: int
    weight_bytes: int
    max_loras: int = 0
    """LoRA adapters that it has room for."""
    engine_version: str = ""
    features: list[str] = []
    """What else step times depend on, `name=value`, sorted: threads, attention, CPU."""
    dtype_reason: str = ""
    """Why it computes in `dtype`."""
    cores: str = ""
    """Threads, where their number comes from and where they run, in a sentence; on a CPU only."""
    ops: str = ""
    """Where its compiled ops come from and what of the CPU they use; on a CPU only."""


class StepProfile(msgspec.Struct, frozen=True):
    """What the steps of an engine took before it served anybody."""

    took_s: float
    """The whole profile, the tries that were not used included."""
    is_used: bool
    """The step model started from it; False where it held too few sizes."""
    steps: tuple[MeasuredStep, ...] = ()
    """One of each size, shortest expected first: medians of the repeats, made monotone."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine serves. `instance` differs after every start."""

    instance: str
    model: ModelInfo
    limits: LimitsState
    adapters: list[str] = []
    """LoRA adapters that requests may name."""
    adapter_paths: list[str] = []
    """Where each of them was loaded from."""
    profile: StepProfile | None = None
    """What its steps took before it served; None where nothing was measured."""
