"""`spec.sla`, `spec.lanes` and `spec.admission`: which requests are promised what."""

from typing import Annotated, ClassVar

from pydantic import Field

from paceline_api.part import Part, Rule, between
from paceline_api.units import Duration, Fraction, Latency, Objective


class FirstTokenTarget(Part):
    """From a request's arrival to its first token, queueing included."""

    cel_rules: ClassVar = (between("p99", "1ms", "600s"),)

    p99: Latency
    """99 of 100 requests are faster, such as `500ms`."""


class TokenTarget(Part):
    """Time per output token, or one gap between two tokens."""

    cel_rules: ClassVar = (between("p99", "0.1ms", "60s"),)

    p99: Latency
    """99 of 100 are faster, such as `50ms`."""


class SlaSpec(Part):
    """The declared targets; the percentile is in the field's path."""

    cel_rules: ClassVar = (
        Rule(
            "has(self.ttft) || has(self.tpot) || has(self.itl)",
            "declare at least one of ttft, tpot and itl",
        ),
        Rule(
            "!has(self.ttft) || !has(self.tpot) ||"
            " duration(self.tpot.p99) <= duration(self.ttft.p99)",
            "must not exceed ttft.p99: the first token costs at least one step",
            ".tpot.p99",
        ),
    )

    ttft: FirstTokenTarget | None = None
    """Time to first token: arrival at the sidecar to the first token."""
    tpot: TokenTarget | None = None
    """Time per output token of one request: (end - first token) / (tokens - 1)."""
    itl: TokenTarget | None = None
    """Inter-token latency: one gap between two tokens."""
    objective: Objective = "0.99"
    """Share of offered requests that must meet every target."""


class InteractiveLane(Part):
    """Requests that a person waits for."""

    share: Fraction = "0.8"
    """Share of the token budget when both lanes have work."""


class BatchLane(Part):
    """Requests that nobody waits for."""

    share: Fraction = "0.2"
    """Share of the token budget when both lanes have work."""
    sla: SlaSpec | None = None
    """Targets of this lane; `spec.sla` when absent."""


class Lanes(Part):
    """How the two lanes share a step."""

    cel_rules: ClassVar = (
        Rule(
            # A hair above 1: shares are decimal strings, their sum is binary.
            "double(self.interactive.share) + double(self.batch.share) <= 1.000001",
            "interactive.share and batch.share must not add up to more than 1",
            ".batch.share",
        ),
    )

    interactive: InteractiveLane = InteractiveLane()
    batch: BatchLane = BatchLane()


class AdmissionSpec(Part):
    """What is refused at the door, so that what is admitted keeps its pace."""

    cel_rules: ClassVar = (between("requestTimeout", "1s", "1h"),)

    max_queued_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 1024
    """Waiting requests per pod; one more is answered 429."""
    max_queued_tokens: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Prompt tokens of the waiting requests per pod."""
    reject_at: Fraction = "0.8"
    """From this share of the two caps on, new requests are refused with a reason."""
    request_timeout: Duration = "60s"
    """From arrival to the last token."""
    shed_hopeless: bool = True
    """Refuse a waiting request whose TTFT target is already lost."""
