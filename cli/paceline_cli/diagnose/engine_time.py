"""Where the engine's time goes, and what therefore bounds it."""

from dataclasses import dataclass
from typing import Literal

from paceline_cli.diagnose.step_parts import StepParts, split
from paceline_tuner.window import Evidence

Bound = Literal["Idle", "Host", "KV", "Memory", "Compute"]

_IDLE_SHARE = 0.5
_HOST_SHARE = 0.3
_FULL_SHARE = 0.95  # of the KV blocks: as the tuner's own bound
_OFTEN_SHARE = 0.1  # of the steps


@dataclass(frozen=True, slots=True)
class EngineTime:
    """How an engine spent one window. Milliseconds."""

    window_ms: float
    parts: StepParts
    """The time of all steps."""
    between_ms: float
    """From one step to the next, while requests ran: the loop's own work."""
    of_decodes: StepParts
    """The time of the steps, each counted once per sequence that decoded in it."""
    between_decodes_ms: float
    """The same of the time between steps."""
    num_steps: int
    mean_batch: float
    """Decoding sequences of a step that has any."""
    full_kv_share: float
    """Share of the steps in which over 95 % of the KV blocks were held."""
    at_limit_share: float
    """Share of the steps in which requests waited and as many ran as the max batch size allows."""
    num_preemptions: int
    recomputed_share: float
    """Share of the prefill tokens that were computed again after a preemption."""

    @property
    def busy_ms(self) -> float:
        """Time in steps, and between steps that follow at once."""
        return self.parts.total + self.between_ms

    @property
    def idle_ms(self) -> float:
        """Time in which nothing ran."""
        return max(0.0, self.window_ms - self.busy_ms)

    @property
    def host_ms(self) -> float:
        """Time of the host, in steps and between them."""
        return self.parts.host + self.between_ms

    @property
    def bound(self) -> Bound:
        """The resource that more load would exhaust first."""
        if self.full_kv_share > _OFTEN_SHARE or self.num_preemptions:
            return "KV"
        if self.idle_ms > _IDLE_SHARE * self.window_ms:
            return "Idle"
        if self.host_ms > _HOST_SHARE * self.busy_ms:
            return "Host"
        memory = self.parts.fixed + self.parts.kv
        return "Memory" if memory > self.parts.decode + self.parts.prefill else "Compute"


def engine_time(evidence: Evidence) -> EngineTime:
    """Add up the steps of the window."""
    capacity, limits = evidence.limits.capacity, evidence.limits.effective
    parts, of_decodes = StepParts(), StepParts()
    between = between_decodes = 0.0
    previous = None
    for step in evidence.steps:
        piece = split(step, evidence.model)
        parts += piece
        of_decodes += piece * step.decode
        # After a step that left nobody running the engine waited for work, not for its host.
        if previous is not None and previous.running:
            gap_ms = max(0.0, (step.at - previous.at) * 1e3 - step.wall_ms - step.draft_ms)
            between += gap_ms
            between_decodes += gap_ms * step.decode
        previous = step
    steps = evidence.steps
    decoding = [step.decode for step in steps if step.decode]
    full = sum(step.kv_used > _FULL_SHARE * capacity.num_blocks for step in steps)
    held = sum(step.waiting > 0 and step.running >= limits.max_batch_size for step in steps)
    count = max(len(steps), 1)
    return EngineTime(
        window_ms=evidence.window_s * 1e3,
        parts=parts,
        between_ms=between,
        of_decodes=of_decodes,
        between_decodes_ms=between_decodes,
        num_steps=len(steps),
        mean_batch=sum(decoding) / len(decoding) if decoding else 0.0,
        full_kv_share=full / count,
        at_limit_share=held / count,
        num_preemptions=sum(step.preemptions for step in steps),
        recomputed_share=_recomputed(evidence),
    )


def _recomputed(evidence: Evidence) -> float:
    """What was prefilled beyond the prompts of those that ended; 0 where nothing was preempted."""
    if not any(step.preemptions for step in evidence.steps):
        return 0.0
    computed = sum(step.prefill for step in evidence.steps)
    asked = sum(r.prompt_tokens - r.cached_tokens for r in evidence.requests)
    return max(0.0, 1 - asked / computed) if computed else 0.0
