"""Plan: what may be written for a service, and why not where it may not."""

from dataclasses import dataclass

from paceline_api.hashes import config_hash, template_hash
from paceline_operator.conditions.support import unsupported
from paceline_operator.observe import Observed


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows from a spec alone."""

    writes_children: bool
    refusal: str
    """Why nothing is written although nobody paused; empty where something is."""
    template_hash: str
    config_hash: str


def plan(observed: Observed) -> Plan:
    """Decide what may be written."""
    spec = observed.service.spec
    refusal = unsupported(spec)
    return Plan(
        writes_children=not spec.paused and not refusal,
        refusal=refusal,
        template_hash=template_hash(spec),
        config_hash=config_hash(spec),
    )
