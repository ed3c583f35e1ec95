"""ExperimentTrial: one experiment from its beginning to its verdict. Pure."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from paceline_tuner.experiment.arms import candidates
from paceline_tuner.experiment.member import Member, count_ended
from paceline_tuner.experiment.sequential import Block, SequentialTest
from paceline_tuner.experiment.tally import NOTHING, ArmTally, load_ratio
from paceline_tuner.service_report import Arm, ArmReport, ExperimentReport, ExperimentVerdict
from paceline_tuner.service_spec import SLA, ExperimentPlan, Policy
from paceline_tuner.window import Evidence

# Three questions are asked of the same requests: worse, better, less goodput. 5 % for all.
_CERTAIN = math.log(3 / 0.05)
_BLOCK = 100  # requests of each arm, as in the audit
_BLOCK_S = 30.0  # of each arm's pods: bursts of a few seconds stay within one block
_GOODPUT_LOSS = 0.05
_MIN_BLOCKS = 3  # before goodput is judged: what is inside comes and goes
_LACKING_S = 60.0
_ALIKE = 1.15  # loads that nobody need be told of
_MAX_LOST = 2  # canaries: a candidate that kills its pod must not go from pod to pod


@dataclass(frozen=True, slots=True)
class ExperimentTrial:
    """A running experiment, and all that its verdict is made from."""

    plan: ExperimentPlan
    base: Policy
    candidate: Policy
    sla: SLA
    since: float
    """Unix seconds."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """By pod."""
    open_base: ArmTally = NOTHING
    open_candidate: ArmTally = NOTHING
    seen_base: ArmTally = NOTHING
    """Sum of the blocks that were closed."""
    seen_candidate: ArmTally = NOTHING
    misses: SequentialTest = field(default_factory=SequentialTest)
    shortfalls: SequentialTest = field(default_factory=SequentialTest)
    closed: int = 0
    """Blocks that were filled."""
    lacking_since: float | None = None
    lost: int = 0
    """Pods that went while they had the candidate."""
    verdict: ExperimentVerdict = "Running"
    reason: str = ""

    @property
    def candidate_pods(self) -> tuple[str, ...]:
        """The pods that have the candidate, by name."""
        return tuple(sorted(n for n, member in self.members.items() if member.arm == "candidate"))

    def report(self, held: Policy | None) -> ExperimentReport:
        """Tell how it stands."""
        base, candidate = self.counted
        return ExperimentReport(
            name=self.plan.name,
            kind=self.plan.kind,
            verdict=self.verdict,
            reason=self.reason or self._progress(),
            since=self.since,
            candidate_pods=self.candidate_pods,
            base=ArmReport(base.requests, base.misses),
            candidate=ArmReport(candidate.requests, candidate.misses),
            held=held,
        )

    @property
    def is_comparable(self) -> bool:
        """Both arms have requests in the block that is being filled."""
        return self.open_base.requests > 0 and self.open_candidate.requests > 0

    @property
    def counted(self) -> tuple[ArmTally, ArmTally]:
        """What the evidence is made from: base, candidate."""
        if not self.is_comparable:
            return self.seen_base, self.seen_candidate
        return self.seen_base + self.open_base, self.seen_candidate + self.open_candidate

    @property
    def evidence(self) -> SequentialTest:
        """The test of misses up to the last request that both arms can be compared by."""
        if not self.is_comparable:
            return self.misses
        return self.misses.look(_misses(self.open_base, self.open_candidate))

    def _progress(self) -> str:
        ratio = load_ratio(*self.counted) if all(arm.requests for arm in self.counted) else 1.0
        if 1 / _ALIKE <= ratio <= _ALIKE:
            return "compares the arms' misses"
        return f"compares the arms' misses, allowing for {_of_load(ratio)}"


def enrol(trial: ExperimentTrial, pods: Collection[str], now: float) -> ExperimentTrial:
    """Give each pod its arm; a pod that is gone leaves its own. Two pods are needed."""
    trial = replace(trial, lost=trial.lost + len(set(trial.candidate_pods).difference(pods)))
    if trial.plan.kind != "AB" and trial.lost >= _MAX_LOST:
        return ended(trial, "Aborted", "the pod with the candidate went away twice")
    if len(pods) < 2:  # noqa: PLR2004 - one per arm
        since = now if trial.lacking_since is None else trial.lacking_since
        trial = replace(trial, members={}, lacking_since=since)
        if now - since < _LACKING_S:
            return trial
        return ended(trial, "Aborted", "fewer than two pods were ready for a minute")
    plan = trial.plan
    chosen = candidates(plan.name, plan.kind, pods, plan.share, trial.candidate_pods)
    arms: dict[str, Arm] = {pod: "candidate" if pod in chosen else "base" for pod in pods}
    return replace(trial, members=_members(trial, arms), lacking_since=None)


def assigned(
    trial: ExperimentTrial, base: Collection[str], candidate: Collection[str]
) -> ExperimentTrial:
    """Give these pods these arms; a pod that comes anew begins anew."""
    trial = replace(trial, lost=trial.lost + len(set(trial.candidate_pods).difference(candidate)))
    if trial.lost >= _MAX_LOST:
        return ended(trial, "Aborted", "the pod with the candidate went away twice")
    names = {*base, *candidate}
    arms: dict[str, Arm] = {pod: "candidate" if pod in candidate else "base" for pod in names}
    return replace(trial, members=_members(trial, arms))


def take(trial: ExperimentTrial, evidences: Mapping[str, Evidence]) -> ExperimentTrial:
    """Count what each pod's requests came to; close the block once both arms have one."""
    members = dict(trial.members)
    base, candidate = trial.open_base, trial.open_candidate
    for pod in members.keys() & evidences.keys():
        members[pod], seen = count_ended(members[pod], trial.sla, evidences[pod])
        if members[pod].arm == "base":
            base += seen
        else:
            candidate += seen
    trial = replace(trial, members=members, open_base=base, open_candidate=candidate)
    return _closed(trial) if _is_block(base) and _is_block(candidate) else trial


def judge(trial: ExperimentTrial, now: float) -> ExperimentTrial:
    """End the trial where it has its answer, or its time is up."""
    test, plan = trial.evidence, trial.plan
    if test.log_worse >= _CERTAIN:
        return ended(trial, "Worse", f"the candidate misses the SLA more often: {_rates(trial)}")
    if _has_lost_goodput(trial):
        return ended(trial, "Worse", "the candidate serves over 5 % less within the SLA")
    if test.log_better >= _CERTAIN and now - trial.since >= plan.min_s:
        return ended(trial, "Better", f"the candidate misses the SLA less often: {_rates(trial)}")
    if now - trial.since >= plan.max_s:
        return ended(trial, "NoDifference", _undecided(trial))
    return trial


def ended(trial: ExperimentTrial, verdict: ExperimentVerdict, reason: str) -> ExperimentTrial:
    """Conclude."""
    return replace(trial, verdict=verdict, reason=reason)


def _members(trial: ExperimentTrial, arms: Mapping[str, Arm]) -> dict[str, Member]:
    """Keep what is known of each pod that stays in its arm."""
    held = trial.members
    return {
        pod: held[pod] if pod in held and held[pod].arm == arm else Member(arm)
        for pod, arm in arms.items()
    }


def _is_block(tally: ArmTally) -> bool:
    return tally.requests >= _BLOCK and tally.pod_seconds >= _BLOCK_S


def _closed(trial: ExperimentTrial) -> ExperimentTrial:
    base, candidate = trial.open_base, trial.open_candidate
    return replace(
        trial,
        open_base=NOTHING,
        open_candidate=NOTHING,
        closed=trial.closed + 1,
        seen_base=trial.seen_base + base,
        seen_candidate=trial.seen_candidate + candidate,
        misses=trial.misses.add(_misses(base, candidate)),
        shortfalls=trial.shortfalls.add(_shortfalls(base, candidate)),
    )


def _misses(base: ArmTally, candidate: ArmTally) -> Block:
    return Block(
        base.requests,
        base.misses,
        candidate.requests,
        candidate.misses,
        load_ratio(base, candidate),
    )


def _shortfalls(base: ArmTally, candidate: ArmTally) -> Block:
    return Block(
        base.offered,
        base.shortfall,
        candidate.offered,
        candidate.shortfall,
        load_ratio(base, candidate),
    )


def _has_lost_goodput(trial: ExperimentTrial) -> bool:
    """Requests pile up that no SLA calls late yet: less is served, and surely so."""
    floor = (1 - _GOODPUT_LOSS) * trial.seen_base.goodput
    return (
        trial.closed >= _MIN_BLOCKS
        and trial.seen_candidate.goodput < floor
        and trial.shortfalls.log_worse >= _CERTAIN
    )


def _rates(trial: ExperimentTrial) -> str:
    base, candidate = trial.counted
    shares = [arm.misses / arm.requests if arm.requests else 0.0 for arm in (candidate, base)]
    return f"{shares[0]:.1%} against {shares[1]:.1%}"


def _of_load(ratio: float) -> str:
    return f"{ratio:.1f} times the tokens per second at the candidate"


def _undecided(trial: ExperimentTrial) -> str:
    if trial.evidence.log_apart >= _CERTAIN:
        return f"{_of_load(load_ratio(*trial.counted))} may explain its misses: {_rates(trial)}"
    if not trial.closed:
        return "too few requests came to compare"
    return f"no difference in misses was found in time: {_rates(trial)}"
