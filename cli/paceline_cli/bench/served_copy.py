"""The copy of a manifest that `sweep` and `compare` serve, and what it changes."""

import json
from pathlib import Path
from typing import Final

import yaml

from paceline_api.inference_service import Spec
from paceline_api.units import seconds
from paceline_cli.bench.grid import BATCH_SIZES, TOKEN_BUDGETS
from paceline_cli.bench.traffic_choice import TrafficChoice
from paceline_cli.fitted_manifest import write_copy
from paceline_cli.manifest import load

REQUEST_TIMEOUT_S: Final = 120.0
"""At least this in the copy: the last, smaller batch of static batching waits for a minute."""


def write_served_copy(source: Path, target: Path, *, mode: str, slowness: float) -> None:
    """Copy the manifest with room for the whole grid.

    Nothing is shed, and requests may take two minutes at least, as curves need every wait; and no
    prefix is shared, as each point is sent the prompts of the one before, which would cost nothing.
    """
    service = load(source)  # a bad manifest is refused under its own name
    batch_size, token_budget = _capacity(service.spec)
    timeout_s = max(seconds(service.spec.admission.request_timeout), REQUEST_TIMEOUT_S)
    draft = target.with_suffix(".source")
    draft.parent.mkdir(parents=True, exist_ok=True)
    manifest = yaml.safe_load(source.read_text(encoding="utf-8"))
    spec = manifest["spec"]
    engine = spec.setdefault("engine", {})
    engine["prefixCaching"] = False
    engine["capacity"] = {
        "maxBatchSize": batch_size,
        "maxTokenBudget": token_budget,
    }
    admission = spec.setdefault("admission", {})
    admission |= {"shedHopeless": False, "requestTimeout": f"{timeout_s:.0f}s"}
    draft.write_text(json.dumps(manifest), encoding="utf-8")  # JSON is YAML too
    write_copy(draft, target, mode=mode, slowness=slowness)
    draft.unlink()


def changed_words(spec: Spec, traffic: TrafficChoice, slowness: float) -> str:
    """Say what is served otherwise than the manifest says, as it changes the figures."""
    told = []
    if slowness != 1:
        told.append(
            "This machine is too slow for the manifest's targets, so this run declares them"
            f" {slowness:g} times as long."
        )
    declared, given = spec.engine.capacity, _capacity(spec)
    if given != (declared.max_batch_size, declared.max_token_budget):
        told.append(
            f"The engine has a capacity of batch {given[0]} and {given[1]:,} tokens, where the"
            f" manifest declares {declared.max_batch_size} and {declared.max_token_budget:,}."
        )
    if traffic.shared_prefix is not None or traffic.turns > 1:
        told.append(
            "Prefix caching is off, as the same prompts come again in each trial: what is shared"
            " by --shared-prefix or --turns is computed anew for each request."
        )
    return " ".join(told)


def _capacity(spec: Spec) -> tuple[int, int]:
    """Return the largest batch and budget that the copy's engine has room for."""
    capacity = spec.engine.capacity
    return (
        max(capacity.max_batch_size, BATCH_SIZES[-1]),
        max(capacity.max_token_budget, TOKEN_BUDGETS[-1]),
    )
