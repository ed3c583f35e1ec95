"""The body of `PATCH /runtime/limits` (docs/runtime-api.md)."""

from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from paceline_sidecar.admission.turns import OrderKind
from paceline_sidecar.hot_config import HotConfig, KeyLimits, PromptClass, Sla
from paceline_sidecar.tuner_status import TunerStatus
from paceline_wire import Coefficients

_LARGEST = 2**31 - 1
_MOST_CLASSES = 8

Count = Annotated[int, Meta(ge=1, le=_LARGEST)]
TargetMs = Annotated[float, Meta(gt=0, le=3_600_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Coefficient = Annotated[float, Meta(ge=0, le=1e9)]
AdapterName = Annotated[str, Meta(min_length=1, max_length=128)]
KeyName = Annotated[str, Meta(min_length=1, max_length=63)]
AdapterPath = Annotated[str, Meta(min_length=1, max_length=4096, pattern="^(/|hf://.)")]
"""A folder of the engine's container, or `hf://ORG/NAME@COMMIT`."""
TunerName = Annotated[str, Meta(max_length=64)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]


class PromptClassPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `sla.ttft_by_prompt_tokens`."""

    ttft_p99_ms: TargetMs
    up_to: Count | None = None
    """The longest prompts of the class, tokens; null of the last one."""


def _check_classes(classes: list[PromptClassPatch]) -> None:
    """Raise ValueError unless the classes cover every length of prompt once."""
    ends = [each.up_to for each in classes]
    if None in ends[:-1] or (ends and ends[-1] is not None):
        raise ValueError("ttft_by_prompt_tokens: every class has an up_to, and the last has none")
    known = [end for end in ends if end is not None]
    if any(low >= high for low, high in pairwise(known)):
        raise ValueError("ttft_by_prompt_tokens: each up_to is above that of the class before")
    if any(low.ttft_p99_ms > high.ttft_p99_ms for low, high in pairwise(classes)):
        raise ValueError("ttft_by_prompt_tokens: no target is below that of shorter prompts")


class SlaPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sla`: what is left out stays, null removes a target.

    A change of `ttft_p99_ms` that names no classes leaves one target for all prompts.
    """

    ttft_p99_ms: TargetMs | UnsetType | None = UNSET
    tpot_p99_ms: TargetMs | UnsetType | None = UNSET
    itl_p99_ms: TargetMs | UnsetType | None = UNSET
    objective: Annotated[float, Meta(gt=0, lt=1)] | UnsetType = UNSET
    e2e_p99_ms: TargetMs | UnsetType | None = UNSET
    ttft_by_prompt_tokens: (
        Annotated[list[PromptClassPatch], Meta(max_length=_MOST_CLASSES)] | UnsetType
    ) = UNSET
    """By prompt length, the shortest first; empty where all prompts have one target."""

    def __post_init__(self) -> None:
        """Refuse classes that leave a length of prompt without a target, or with two."""
        if isinstance(self.ttft_by_prompt_tokens, list):
            _check_classes(self.ttft_by_prompt_tokens)


class KeyLimitsPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admission.per_key` and an entry of `admission.keys`: what is left out has no bound."""

    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    max_concurrent_requests: Count | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None

    def limits(self) -> KeyLimits:
        """Return what the sidecar obeys."""
        return KeyLimits(**msgspec.structs.asdict(self))


class AdmissionPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admission`: what is left out stays."""

    max_queued_requests: Count | UnsetType = UNSET
    max_queued_tokens: Count | UnsetType | None = UNSET
    reject_at: PositiveShare | UnsetType = UNSET
    request_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] | UnsetType = UNSET
    shed_hopeless: bool | UnsetType = UNSET
    order: OrderKind | UnsetType = UNSET
    max_items_per_request: Count | UnsetType = UNSET
    max_prompt_tokens: Count | UnsetType | None = UNSET
    max_output_tokens: Count | UnsetType | None = UNSET
    per_key: KeyLimitsPatch | UnsetType = UNSET
    keys: Annotated[dict[KeyName, KeyLimitsPatch], Meta(max_length=256)] | UnsetType = UNSET
    """Complete: a key that is left out has the limits of `per_key`."""


class CoefficientsPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`coefficients`: where the step model starts from while it has no fit of its own."""

    theta: Annotated[list[Coefficient], Meta(min_length=5, max_length=5)]
    knee: Count
    correction: Annotated[list[Coefficient], Meta(max_length=4096)] = []
    bin_tokens: Count = 128


class AdapterPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `adapters`: a LoRA adapter that the engine is to have."""

    name: AdapterName
    path: AdapterPath


class ConfigPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change without its epoch: also the content of the runtime configuration file."""

    max_batch_size: Count | UnsetType = UNSET
    token_budget: Count | UnsetType = UNSET
    step_target_ms: TargetMs | UnsetType | None = UNSET
    interactive_share: Share | UnsetType = UNSET
    batch_share: Share | UnsetType = UNSET
    pace_tpot_ms: TargetMs | UnsetType | None = UNSET
    batch_step_target_ms: TargetMs | UnsetType | None = UNSET
    may_pause_batch: bool | UnsetType = UNSET
    sla: SlaPatch | UnsetType = UNSET
    batch_sla: SlaPatch | UnsetType | None = UNSET
    """The batch lane's own targets; null judges it by `sla` again."""
    admission: AdmissionPatch | UnsetType = UNSET
    config_hash: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    certified: bool = False
    lease_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    coefficients: CoefficientsPatch | UnsetType = UNSET
    adapters: Annotated[list[AdapterPatch], Meta(max_length=256)] | UnsetType = UNSET
    """All LoRA adapters that the engine is to have; what is left out is unloaded."""


class TunerPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tuner`: what the tuner makes of the pod. Any words, so that new ones are not refused."""

    phase: TunerName = ""
    verdict: TunerName = ""
    binding: TunerName = ""

    def status(self, *, at: float, instance: str) -> TunerStatus:
        """Return what the sidecar keeps."""
        return TunerStatus(**msgspec.structs.asdict(self), at=at, instance=instance)


class LimitsPatch(ConfigPatch, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `PATCH /runtime/limits`."""

    epoch: Annotated[int, Meta(ge=0, le=2**62)]
    instance: Annotated[str, Meta(max_length=256)] | None = None
    """The engine that it is meant for; None where the caller does not say."""
    capacity_rps: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """λ*: requests a second that this pod can serve within the SLA. Taken with renewals, too."""
    reason: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
    """Why these limits, for a person."""
    tuner: TunerPatch | None = None
    """Shown to people for as long as the lease lasts. Taken with renewals, too."""


def coefficients_of(patch: ConfigPatch) -> Coefficients | None:
    """What the engine shall start from; None where the change does not say."""
    given = patch.coefficients
    if isinstance(given, UnsetType):
        return None
    return Coefficients(
        theta=given.theta,
        knee=given.knee,
        correction=given.correction,
        bin_tokens=given.bin_tokens,
    )


def merged(config: HotConfig, patch: ConfigPatch) -> HotConfig:
    """What the sidecar obeys after the change."""
    sla, batch_sla, admission = config.sla, config.batch_sla, config.admission
    if isinstance(patch.sla, SlaPatch):
        sla = _with(sla, patch.sla)
    if isinstance(patch.batch_sla, SlaPatch):
        batch_sla = _with(batch_sla or Sla(), patch.batch_sla)
    elif patch.batch_sla is None:
        batch_sla = None
    if isinstance(patch.admission, AdmissionPatch):
        given = _given(patch.admission)
        if isinstance(patch.admission.per_key, KeyLimitsPatch):
            given["per_key"] = patch.admission.per_key.limits()
        if isinstance(patch.admission.keys, dict):
            given["keys"] = {name: key.limits() for name, key in patch.admission.keys.items()}
        admission = replace(admission, **given)
    given_hash = patch.config_hash
    config_hash = config.config_hash if isinstance(given_hash, UnsetType) else given_hash
    return HotConfig(sla=sla, batch_sla=batch_sla, admission=admission, config_hash=config_hash)


def _with(sla: Sla, patch: SlaPatch) -> Sla:
    given = _given(patch)
    classes = given.get("ttft_by_prompt_tokens", [] if "ttft_p99_ms" in given else None)
    if classes is not None:
        given["ttft_by_prompt_tokens"] = tuple(
            PromptClass(each.up_to, each.ttft_p99_ms) for each in classes
        )
    if classes:
        given["ttft_p99_ms"] = classes[-1].ttft_p99_ms
    return replace(sla, **given)


def _given(patch: msgspec.Struct) -> dict[str, Any]:
    values = ((name, getattr(patch, name)) for name in patch.__struct_fields__)
    return {name: value for name, value in values if value is not UNSET}
