"""Decide what may be written for a service, and say why not where it may not."""

from dataclasses import dataclass

from paceline_api.hashes import config_hash, template_hash
from paceline_api.inference_service import Spec


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What follows from a spec alone."""

    writes_children: bool
    refusal: str
    """Why nothing is written although nobody paused; empty where something is."""
    template_hash: str
    """The template hash of pods that serve the spec."""
    config_hash: str
    rolled_back: str = ""
    """Why the image that the spec names was taken back; empty where it was not."""


def plan_writes(spec: Spec) -> WritePlan:
    """Decide what may be written."""
    refusal = unsupported(spec)
    return WritePlan(
        writes_children=not spec.paused and not refusal,
        refusal=refusal,
        template_hash=template_hash(spec),
        config_hash=config_hash(spec),
    )


def unsupported(spec: Spec) -> str:
    """Name the first field that asks for what this version cannot do; empty where all is supported.

    Admission refuses these; an object that was stored before may still hold them.
    """
    asks = {
        "model.uri s3://": spec.model.uri.startswith("s3://"),
        "engine.speculative.draftModelUri s3://": (
            spec.engine.speculative.draft_model_uri or ""
        ).startswith("s3://"),
    }
    return next(
        (
            f"spec.{field} is not supported by this version"
            for field, asked in asks.items()
            if asked
        ),
        "",
    )
