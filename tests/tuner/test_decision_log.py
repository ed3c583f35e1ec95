"""The decision log: two hundred decisions in little memory, as rich as they were."""

from dataclasses import replace

from paceline_testing.simulated import a_laptop, clients
from paceline_testing.trial import Trial
from paceline_tuner.decision import Decision
from paceline_tuner.decision_log import DecisionLog
from paceline_tuner.service_spec import SLA, TuningSpec


async def some_decisions() -> list[Decision]:
    """Of a laptop that learns, with changes, outcomes and phases."""
    trial = Trial(a_laptop(clients(1.5)), TuningSpec(sla=SLA(itl_p99_ms=300.0), config_hash="one"))
    decisions = []
    for _ in range(36):
        await trial.run(5)
        decisions.append(trial.decision)
    return decisions


async def test_decisions_come_back_as_they_were() -> None:
    """Inputs, prediction, outcome and reason of each; the newest has its states too."""
    decisions, log = await some_decisions(), DecisionLog()

    for decision in decisions:
        log.append(decision)

    assert [d.as_dict() for d in log.decisions()] == [d.as_dict() for d in decisions]
    assert log.newest is log.decisions()[-1] is decisions[-1]
    assert any(d.outcome is not None for d in log.decisions()[:-1])


async def test_decisions_with_other_inputs_come_back_too() -> None:
    """One without evidence has none, and an SLA of its own has more of them."""
    decisions, log = await some_decisions(), DecisionLog()
    decisions[0] = replace(decisions[0], inputs={}, current=None, wanted=None, chosen=None)
    decisions[20] = replace(decisions[20], inputs={"ttft_p95_ms": 7.0, **decisions[20].inputs})
    decisions[21] = replace(decisions[21], inputs={})

    for decision in decisions:
        log.append(decision)

    assert [d.as_dict() for d in log.decisions()] == [d.as_dict() for d in decisions]


async def test_the_newest_two_hundred_are_kept() -> None:
    """Memory is bounded by their number."""
    (decision, *_), log = await some_decisions(), DecisionLog()

    for number in range(1000):
        log.append(replace(decision, at=float(number)))

    kept = [decision.at for decision in log.decisions()]
    assert kept == [float(number) for number in range(1000 - len(kept), 1000)]
    assert 200 <= len(kept) < 220


async def test_milestones_tell_of_changes_and_phases() -> None:
    """What graphs are marked with needs no unpacking."""
    decisions, log = await some_decisions(), DecisionLog()

    for decision in decisions:
        log.append(decision)

    marks = log.milestones()
    assert [d.at for d in marks if d.change] == [d.at for d in decisions if d.change]
    assert [d.at for d in marks if d.outcome] == [d.at for d in decisions if d.outcome]
    assert marks[-1].at == decisions[-1].at
