"""One pod in its arm: which of its requests count, and from when."""

from dataclasses import dataclass

from paceline_tuner.attainment import is_late
from paceline_tuner.audit import is_missed
from paceline_tuner.experiment.tally import NOTHING, ArmTally
from paceline_tuner.service_report import Arm
from paceline_tuner.service_spec import SLA
from paceline_tuner.window import Evidence

_SETTLE_S = 30.0  # a decision, and the drain of what was admitted under the other policy


@dataclass(frozen=True, slots=True)
class Member:
    """What is known of a pod in its arm since the last tick. Times are the pod's clock."""

    arm: Arm
    instance: str | None = None
    """None until it was seen in this arm."""
    counts_from: float = 0.0
    """Requests that arrived earlier were admitted under another policy."""
    seen_at: float = 0.0
    last_seq: int = 0
    inside: int = 0


def count_ended(member: Member, sla: SLA, evidence: Evidence) -> tuple[Member, ArmTally]:
    """Count what ended since the last tick.

    A pod that is new in its arm, has a new engine, or was out of sight for longer than its
    telemetry reaches back settles first.
    """
    now, since = evidence.now, member.seen_at
    inside = evidence.load.running + evidence.load.waiting
    last_seq = max((record.seq for record in evidence.requests), default=0)
    if member.instance != evidence.instance or not 0 <= now - since <= evidence.window_s:
        settles = Member(member.arm, evidence.instance, now + _SETTLE_S, now, last_seq, inside)
        return settles, NOTHING
    next_member = Member(
        member.arm,
        member.instance,
        member.counts_from,
        now,
        max(last_seq, member.last_seq),
        inside,
    )
    if now <= member.counts_from:
        return next_member, NOTHING
    fresh = [
        record
        for record in evidence.requests
        if record.seq > member.last_seq and record.arrived_at >= member.counts_from
    ]
    offered = [r for r in fresh if r.outcome != "cancelled" or is_late(sla, r)]
    served = [record for record in fresh if record.outcome == "ok"]
    return next_member, ArmTally(
        requests=sum(record.weight for record in offered),
        misses=sum(record.weight for record in offered if is_missed(sla, record)),
        ended=sum(record.weight for record in fresh),
        prompt_tokens=sum(record.weight * record.prompt_tokens for record in fresh),
        served=sum(record.weight for record in served),
        output_tokens=sum(record.weight * record.output_tokens for record in served),
        grown=inside - member.inside,
        pod_seconds=now - max(since, member.counts_from),
    )
