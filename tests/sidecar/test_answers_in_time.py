"""Under an end-to-end target, who names a short answer may wait for longer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_sidecar.admission.control import AdmissionControl
from paceline_sidecar.admission.forecast import TokenPace
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, PromptClass, Sla
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine, a_step, an_engine_load
from paceline_testing.waiting import wait_until

TEN_SECONDS = HotConfig(Sla(e2e_p99_ms=10_000.0), AdmissionPolicy(max_output_tokens=None))


def an_admission() -> AdmissionControl:
    """A thousand prompt tokens a second, and ten tokens of each answer."""
    admission = AdmissionControl(lambda: 0.0)
    steps = [
        a_step(n, at=n / 10, wall_ms=100.0, decode=4, prefill=100, waiting_tokens=9000)
        for n in range(20)
    ]
    admission.rate.learn(steps)
    admission.pace.learn(steps)
    return admission


def ask(admission: AdmissionControl, max_output: int, config: HotConfig = TEN_SECONDS) -> None:
    admission.admit([500], lane="interactive", config=config, max_output=max_output)


def test_an_answer_that_is_in_time_all_the_same_may_begin_later() -> None:
    """Four seconds are in the way: an answer of 4.5 s has the time, one of 6 s has not."""
    admission = an_admission()
    for _ in range(7):
        ask(admission, 20)

    ask(admission, 45)

    for longer in (60, 0):  # or where nobody says how long
        with pytest.raises(Refused, match="later than"):
            ask(admission, longer)


def test_a_first_token_target_holds_all_the_same() -> None:
    """Whatever the answer's length."""
    admission = an_admission()
    config = HotConfig(Sla(ttft_p99_ms=1100.0, e2e_p99_ms=10_000.0))
    ask(admission, 10, config)

    ask(admission, 10, config)

    with pytest.raises(Refused, match=r"later than the 1\.1 s"):
        ask(admission, 10, config)


@settings(deadline=None)
@given(
    e2e_ms=st.floats(1, 1e6), answer_ms=st.none() | st.floats(0, 1e7), prompt=st.integers(1, 10**6)
)
def test_no_answer_has_less_time_than_one_of_unknown_length(
    e2e_ms: float, answer_ms: float | None, prompt: int
) -> None:
    """And one that waits for longer ends in time at the present pace."""
    sla = Sla(e2e_p99_ms=e2e_ms, ttft_by_prompt_tokens=(PromptClass(None, 1e9),))

    unknown, known = sla.first_token_ms(prompt), sla.first_token_ms(prompt, answer_ms)

    assert unknown is not None
    assert known is not None
    assert known >= unknown == 0.25 * e2e_ms
    if known > unknown:
        assert answer_ms is not None
        assert known + answer_ms <= e2e_ms


def test_the_pace_is_that_of_the_last_steps_that_gave_tokens() -> None:
    """Prompts alone say nothing, nor do steps of long ago or of another engine."""
    pace = TokenPace()
    pace.learn([a_step(1, at=0.0, wall_ms=9000.0, decode=1, prefill=0)])
    pace.learn([a_step(n, at=20.0 + n / 10, wall_ms=50.0, decode=1) for n in range(20)])
    pace.learn([a_step(99, at=22.0, wall_ms=9000.0, decode=0, prefill=100)])

    assert pace.answer_s(100) == pytest.approx(5.0)
    assert pace.answer_s(0) is None
    pace.forget()
    assert pace.answer_s(100) is None


def test_a_waiting_request_is_given_up_when_its_answer_would_be_late(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Two tokens take a tenth of the second that there is, five hundred all of it and more."""
    engine.script.hold_after = 0
    engine.script.load = an_engine_load(waiting=3)
    engine.script.steps = [
        a_step(n, at=n / 10, wall_ms=50.0, decode=1, prefill=0) for n in range(20)
    ]
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["steps"])
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["load"]["waiting"] == 3)
    body = {"epoch": 2, "lease_s": 60, "sla": {"e2e_p99_ms": 1000}}
    assert sidecar.admin.patch("/runtime/limits", json=body).status_code == 200

    def ask_for(max_tokens: int) -> tuple[str, float]:
        asked = {"model": "scripted", "prompt": [5] * 4, "max_tokens": max_tokens}
        error = sidecar.public.post("/v1/completions", json=asked).json()["error"]
        record = sidecar.admin.get("/runtime/telemetry").json()["requests"][-1]
        return str(error["code"]), record["finished_at"] - record["arrived_at"]

    (unknown, waited_s), (known, longer_s) = ask_for(500), ask_for(2)
    assert unknown == known == "ttft_lost"
    assert waited_s >= 0.25
    assert longer_s >= 0.8
