from dataclasses import replace

import pytest

from chaos.audit import Findings, Write
from chaos.report import Event, Run, record, table
from chaos.streams import Answer, Kill, Stream

WHOLE = Stream(0, 1.0, 2.0, " Paris", "stop", first_byte_at=1.2, port=1)
CUT = Stream(0, 9.0, 10.5, " Pa", "", "closed", first_byte_at=9.5, port=2, num_retries=1)
EVENT = Event("engine killed", "a/engine", 10.0, 22.0, "not ready", Kill(10.0, frozenset({2})))
GOOD = Run(
    seed=1,
    began_at=0.0,
    events=[EVENT],
    streams=[WHOLE, CUT],
    answers=[Answer(" Paris", "stop")],
    findings=Findings(num_writes=5, num_leaders=1, by_two=(), at_handover=()),
)


def test_a_run_is_summed_up() -> None:
    found = record(GOOD)

    assert GOOD.is_good
    assert found["requests"] == {
        "whole": 1,
        "cut by the kill of their own pod": 1,
        "failed": 0,
        "mixed": 0,
    }
    assert (found["to_calm_p50_s"], found["to_calm_max_s"]) == (12.0, 12.0)
    assert [bad["during"] for bad in found["bad"]] == ["engine killed"]
    assert "| 10 s | engine killed | a/engine | 12.0 s | not ready | 0 | 0 | 0 | 1 |" in table(GOOD)


@pytest.mark.parametrize(
    "run",
    [
        replace(GOOD, streams=[WHOLE, replace(CUT, port=3)]),
        replace(GOOD, streams=[replace(WHOLE, text=" Rome")]),
        replace(
            GOOD,
            findings=replace(
                GOOD.findings, by_two=(Write("a", "patch", "services", "n", 1.0, 2.0),)
            ),
        ),
        replace(GOOD, events=[replace(EVENT, calm_at=None)]),
    ],
    ids=["failed", "mixed", "two leaders", "never calm"],
)
def test_what_must_not_happen_fails_the_run(run: Run) -> None:
    assert not run.is_good
