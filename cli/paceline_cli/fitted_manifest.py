"""A copy of a manifest whose targets this machine can keep."""

import math
from pathlib import Path

import yaml

from paceline_api.units import milliseconds
from paceline_cli.manifest import load
from paceline_cli.traffic.calibration import Speed
from paceline_tuner.service_spec import SLA


def slowness(sla: SLA, speed: Speed) -> float:
    """How many times longer targets must be for this machine to keep them; 1 where it can."""
    if sla.itl_p99_ms is None:
        return 1.0
    return max(1.0, math.ceil(4 * speed.least_itl_ms / sla.itl_p99_ms) / 4)


def write_copy(source: Path, target: Path, *, mode: str, slowness: float) -> None:
    """Write `source` to `target` with another `spec.tuning.mode`, and with longer targets."""
    load(source)  # a bad manifest is refused under its own name
    manifest = yaml.safe_load(source.read_text(encoding="utf-8"))
    spec = manifest["spec"]
    spec.setdefault("tuning", {})["mode"] = mode
    for name in ("ttft", "tpot", "itl"):
        declared = spec.get("sla", {}).get(name, {})
        for each in (declared, *declared.get("byPromptTokens", ())):
            if "p99" in each:
                each["p99"] = f"{milliseconds(each['p99']) * slowness:.0f}ms"
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".draft")
    draft.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    draft.replace(target)
