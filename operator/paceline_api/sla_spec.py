"""`spec.sla`, `spec.lanes` and `spec.admission`: which requests are promised what."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from paceline_api.part import Part, Rule, between, listed
from paceline_api.units import Duration, Fraction, Latency, Objective
from paceline_tuner.service_spec import Order

MAX_PROMPT_CLASSES: Final = 8
_EACH: Final = f"{[*range(MAX_PROMPT_CLASSES)]}"
_SIZE: Final = "size(self.byPromptTokens)"


class PromptClassTarget(Part):
    """The first-token target of prompts of some lengths."""

    cel_rules: ClassVar = (between("p99", "1ms", "600s"),)

    up_to: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Tokens of the longest prompts in it, cached ones counted; absent in the last class alone."""
    p99: Latency
    """99 of 100 of these requests are faster, such as `500ms`."""


class FirstTokenTarget(Part):
    """From a request's arrival to its first token, queueing included."""

    cel_rules: ClassVar = (
        Rule(
            "has(self.p99) != has(self.byPromptTokens)",
            "declare either p99 or byPromptTokens",
        ),
        Rule(
            "!has(self.p99) || (duration(self.p99) >= duration('1ms') &&"
            " duration(self.p99) <= duration('600s'))",
            "must lie between 1ms and 600s",
            ".p99",
        ),
        Rule(
            f"!has(self.byPromptTokens) || {_EACH}.all(i, i >= {_SIZE} ||"
            f" has(self.byPromptTokens[i].upTo) == (i + 1 < {_SIZE}))",
            "every class but the last needs upTo, and the last must have none:"
            " it is for all longer prompts",
            ".byPromptTokens",
        ),
        Rule(
            f"!has(self.byPromptTokens) || {_EACH}.all(i, i + 1 >= {_SIZE} ||"
            " !has(self.byPromptTokens[i].upTo) || !has(self.byPromptTokens[i + 1].upTo) ||"
            " self.byPromptTokens[i].upTo < self.byPromptTokens[i + 1].upTo)",
            "upTo must rise from class to class",
            ".byPromptTokens",
        ),
        Rule(
            f"!has(self.byPromptTokens) || {_EACH}.all(i, i + 1 >= {_SIZE} ||"
            " duration(self.byPromptTokens[i].p99) <= duration(self.byPromptTokens[i + 1].p99))",
            "p99 must not fall from class to class: a longer prompt takes longer",
            ".byPromptTokens",
        ),
    )

    p99: Latency | None = None
    """99 of 100 requests are faster, such as `500ms`, whatever their prompt."""
    by_prompt_tokens: (
        Annotated[
            list[PromptClassTarget],
            Field(min_length=1, json_schema_extra=listed("atomic", max_items=MAX_PROMPT_CLASSES)),
        ]
        | None
    ) = None
    """Instead of p99: targets by prompt length, the shortest prompts first. Each class is held to
    the objective by itself; those that wait have their turn by when their first token is due."""


class TokenTarget(Part):
    """Time per output token, or one gap between two tokens."""

    cel_rules: ClassVar = (between("p99", "0.1ms", "60s"),)

    p99: Latency
    """99 of 100 are faster, such as `50ms`."""


class EndToEndTarget(Part):
    """From a request's arrival to its last token, queueing included."""

    cel_rules: ClassVar = (between("p99", "1ms", "1h"),)

    p99: Latency
    """99 of 100 requests are done within this, such as `20s`."""


class SlaSpec(Part):
    """The declared targets; the percentile is in the field's path."""

    cel_rules: ClassVar = (
        Rule(
            "has(self.ttft) || has(self.tpot) || has(self.itl) || has(self.e2e)",
            "declare at least one of ttft, tpot, itl and e2e",
        ),
        Rule(
            "!has(self.ttft) || !has(self.ttft.p99) || !has(self.tpot) ||"
            " duration(self.tpot.p99) <= duration(self.ttft.p99)",
            "must not exceed ttft.p99: the first token costs at least one step",
            ".tpot.p99",
        ),
        Rule(
            "!has(self.ttft) || !has(self.ttft.byPromptTokens) || !has(self.tpot) ||"
            " self.ttft.byPromptTokens.all(each,"
            " duration(self.tpot.p99) <= duration(each.p99))",
            "must not exceed the p99 of any of ttft.byPromptTokens: the first token costs at least"
            " one step",
            ".tpot.p99",
        ),
        Rule(
            "!has(self.ttft) || !has(self.ttft.p99) || !has(self.e2e) ||"
            " duration(self.ttft.p99) <= duration(self.e2e.p99)",
            "must not be below ttft.p99: the last token comes after the first",
            ".e2e.p99",
        ),
        Rule(
            "!has(self.ttft) || !has(self.ttft.byPromptTokens) || !has(self.e2e) ||"
            " self.ttft.byPromptTokens.all(each,"
            " duration(each.p99) <= duration(self.e2e.p99))",
            "must not be below the p99 of any of ttft.byPromptTokens: the last token comes after"
            " the first",
            ".e2e.p99",
        ),
    )

    ttft: FirstTokenTarget | None = None
    """Time to first token: arrival at the sidecar to the first token."""
    tpot: TokenTarget | None = None
    """Time per output token of one request: (end - first token) / (tokens - 1)."""
    itl: TokenTarget | None = None
    """Inter-token latency: one gap between two tokens."""
    e2e: Annotated[EndToEndTarget | None, Field(alias="e2e")] = None
    """End to end: arrival at the sidecar to the last token."""
    objective: Objective = "0.99"
    """Share of offered requests that must meet every target; status shows this quantile too."""


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


Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class KeyLimitsSpec(Part):
    """What each API key may do; what is absent has no bound. Every pod counts for itself."""

    max_concurrent_requests: Count | None = None
    """Requests that run at the same time."""
    requests_per_minute: Count | None = None
    """Requests that may come in a minute; a burst may use a minute's at once."""
    tokens_per_minute: Count | None = None
    """Prompt and output tokens in a minute; a burst may use a minute's at once."""


class NamedKeyLimits(KeyLimitsSpec):
    """What one key may do, by its name in the Secret; what is absent is as in `perKey`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=63)]
    """What stands before the colon of its line."""
    weight: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Its share of the engine, beside the weights of the other keys that wait; 1 when absent."""


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
    order: Order = "Fifo"
    """Whose prompt is computed next of those that wait in a lane. Fifo takes them as they come, and
    with ttft.byPromptTokens by when their first token is due. ShortestFirst lets short prompts
    pass longer ones, but none that came a TTFT target before: lower means, more good requests under
    overload, and what is refused then are the longest prompts."""
    max_items_per_request: Annotated[int, Field(ge=1, le=1024)] = 1024
    """Prompts times choices, inputs or pairs of one request; more are answered 400."""
    max_prompt_tokens: Count | None = None
    """Tokens of one prompt; the model's context when absent."""
    max_output_tokens: Count | None = None
    """Tokens of one choice; a request that asks for none gets so many at most."""
    per_key: KeyLimitsSpec = KeyLimitsSpec()
    keys: (
        Annotated[
            list[NamedKeyLimits],
            Field(json_schema_extra=listed("map", max_items=64, keys=("name",))),
        ]
        | None
    ) = None
    """Keys with limits or a weight of their own."""
