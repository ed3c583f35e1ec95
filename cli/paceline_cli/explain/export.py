"""The tuned limits as a manifest with `tuning.mode: Fixed`, each with its reason. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from paceline_api.inference_service import InferenceService
from paceline_api.validate import validate
from paceline_cli.errors import LocalError
from paceline_cli.local_state import Explained, LocalState

_OF_THE_CLUSTER: Final = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class TunedPod:
    """One pod's limits and why they are so."""

    name: str
    batch_size: int
    token_budget: int
    reason: str
    """Names what bounds the batch; where the step model does not decide, it is that of both."""
    binding: str = ""
    budget_reason: str = ""
    """What bounds the token budget; empty where the records tell nothing of it alone."""
    step_target_ms: float | None = None


def tuned_here(state: LocalState, pod: str | None) -> list[TunedPod]:
    """Read the newest limits of each pod of a service of this machine."""
    newest = {}
    for decision in state.decisions:
        limits = decision.chosen or decision.current
        if limits is not None and pod in {None, decision.pod}:
            newest[decision.pod] = TunedPod(
                name=decision.pod,
                batch_size=limits.batch_size,
                token_budget=limits.token_budget,
                reason=decision.reason,
                binding=decision.binding,
                budget_reason=_budget_reason(decision),
                step_target_ms=limits.step_target_ms,
            )
    return list(newest.values())


def _budget_reason(decision: Explained) -> str:
    """Say what bounds the budget where the step model chose it: what a step can hold."""
    wanted, chosen = decision.wanted, decision.chosen
    target_ms, pace_ms = (
        value if isinstance(value := decision.inputs.get(name), (int, float)) else None
        for name in ("step_target_ms", "pace_tpot_ms")
    )
    is_bounded_alone = decision.reason_subject == "BatchSize"
    if not is_bounded_alone or wanted is None or chosen is None or target_ms is None:
        return ""
    paced = (
        f"a step paced to {target_ms:.0f} ms holds"
        if pace_ms is None
        else f"a step holds where requests are paced to {pace_ms:.0f} ms a token"
    )
    most = f"the most that {paced} beside one decode, and room for the batch and some prefill"
    if wanted.token_budget == chosen.token_budget:
        return f"{most[0].upper()}{most[1:]}."
    return (
        f"The newest proposal is {wanted.token_budget}: {most}."
        f" The guards against needless changes hold {chosen.token_budget}."
    )


def tuned_in_cluster(resource: Mapping[str, Any], pod: str | None) -> list[TunedPod]:
    """Read them from the status of an InferenceService."""
    tuning = InferenceService.read(dict(resource)).status.tuning
    return [
        TunedPod(
            name=each.name,
            batch_size=each.batch_size,
            token_budget=each.token_budget,
            reason=each.reason or "none given",
            binding=each.binding or "",
        )
        for each in (tuning and tuning.pods) or []
        if each.batch_size is not None
        and each.token_budget is not None
        and pod in {None, each.name}
    ]


def fixed_manifest(manifest: Mapping[str, Any], pods: Sequence[TunedPod]) -> str:
    """Write the manifest with the limits held. Raises LocalError where pods differ."""
    if not pods:
        raise LocalError("no limits were chosen yet: there is nothing to export")
    if len({(pod.batch_size, pod.token_budget) for pod in pods}) > 1:
        told = ", ".join(
            f"pod/{pod.name} has batch {pod.batch_size} and {pod.token_budget} tokens"
            for pod in pods
        )
        raise LocalError(f"pods have limits of their own, name one: {told}")
    chosen = pods[0]
    spec = {name: value for name, value in manifest["spec"].items() if name != "tuning"}
    tuning = dict(manifest["spec"].get("tuning", {}))
    batch, budget = tuning.pop("batchSize", {}), tuning.pop("tokenBudget", {})
    tuning.pop("mode", None)
    tuning.pop("experiment", None)  # it compares policies that tune
    head = {name: manifest[name] for name in ("apiVersion", "kind")}
    head |= {"metadata": _own_metadata(manifest["metadata"]), "spec": spec}
    lines = [
        *_comment(f"Limits that the tuner found for pod/{chosen.name}, held by mode Fixed."),
        *_comment("Remove tuning.mode to let the tuner move them again."),
        yaml.safe_dump(head, sort_keys=False).rstrip("\n"),
        "  tuning:",
        "    mode: Fixed",
    ]
    if tuning:
        lines += [f"    {line}" for line in yaml.safe_dump(tuning, sort_keys=False).splitlines()]
    why = f"{chosen.reason} (binding: {chosen.binding})" if chosen.binding else chosen.reason
    one = f"The tuner gives one reason for both limits: {why}"
    capacity = InferenceService.read(dict(manifest)).spec.engine.capacity
    for name, declared, value, most, what, reason in (
        (
            *("batchSize", batch, chosen.batch_size, capacity.max_batch_size),
            *("Sequences that run at once.", why),
        ),
        (
            *("tokenBudget", budget, chosen.token_budget, capacity.max_token_budget),
            *("Tokens in one step.", chosen.budget_reason or one),
        ),
    ):
        lines += _comment(f"{what} {_at_a_bound(declared, value, most)}{reason}", indent=4)
        lines += [f"    {name}:"]
        bounds = _around(declared, value) | {"initial": value}
        lines += [f"      {key}: {bound}" for key, bound in bounds.items()]
    if chosen.step_target_ms is not None:
        lines += _comment(
            f"Steps were also paced to {chosen.step_target_ms:.0f} ms, which Fixed does not hold.",
            indent=4,
        )
    text = "\n".join(lines) + "\n"
    validate(yaml.safe_load(text))
    return text


def _at_a_bound(declared: Mapping[str, int], value: int, capacity: int) -> str:
    """Say that a limit can go no further, where it cannot."""
    if value == declared.get("max"):
        return "It is at the declared max. "
    if value == declared.get("min"):
        return "It is at the declared min. "
    return "It is all that engine.capacity has. " if value == capacity else ""


def _around(declared: Mapping[str, int], value: int) -> dict[str, int]:
    """Keep the declared bounds, as far as the value lies between them."""
    kept = {}
    if "min" in declared:
        kept["min"] = min(declared["min"], value)
    if "max" in declared:
        kept["max"] = max(declared["max"], value)
    return kept


def _own_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the API server writes."""
    kept = {name: value for name, value in metadata.items() if name not in _OF_THE_CLUSTER}
    notes = {k: v for k, v in kept.pop("annotations", {}).items() if k != _LAST_APPLIED}
    return kept | ({"annotations": notes} if notes else {})


def _comment(text: str, *, indent: int = 0) -> list[str]:
    return [f"{' ' * indent}# {' '.join(text.split())}"]
