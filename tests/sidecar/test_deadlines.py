"""A request's own deadline, and that of its first token."""

import threading
from functools import partial

import msgspec
import openai
import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import (
    Script,
    ScriptedEngine,
    a_step,
    an_engine_load,
)
from paceline_testing.waiting import wait_until


@pytest.fixture
def script() -> Script:
    return Script(hold_after=0)


def complete(sidecar: Sidecar, **headers: str) -> object:
    return sidecar.openai.completions.create(model="scripted", prompt="Hi", extra_headers=headers)


def outcomes(sidecar: Sidecar) -> list[str]:
    requests = sidecar.admin.get("/runtime/telemetry").json()["requests"]
    return [request["outcome"] for request in requests]


def test_a_request_ends_at_the_deadline_that_its_client_gave(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """504, and the engine is told."""
    with pytest.raises(openai.InternalServerError) as caught:
        complete(sidecar, **{"x-request-timeout-ms": "2000"})

    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    wait_until(lambda: engine.aborted)
    assert engine.running == 0
    assert engine.aborted == [engine.submitted[0].id]
    assert outcomes(sidecar) == ["timeout"]


def test_the_time_for_tokenizing_counts(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """From the arrival; what comes too late never reaches the engine."""
    with pytest.raises(openai.InternalServerError) as caught:
        sidecar.openai.completions.create(
            model="scripted", prompt="Hi " * 1000, extra_headers={"x-request-timeout-ms": "0.001"}
        )

    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert engine.submitted == []


def test_the_services_own_timeout_bounds_every_request(sidecar: Sidecar) -> None:
    """A client cannot ask for more."""
    patch = {"epoch": 2, "admission": {"request_timeout_s": 0.05}}
    sidecar.admin.patch("/runtime/limits", json=patch)

    with pytest.raises(openai.InternalServerError) as caught:
        complete(sidecar, **{"x-request-timeout-ms": "60000"})

    assert caught.value.status_code == 504


def test_a_stream_that_runs_out_of_time_ends_with_an_error_event(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Its status was sent long ago."""
    engine.script.hold_after = 2
    with pytest.raises(openai.APIError, match="deadline"):
        list(
            sidecar.openai.completions.create(
                model="scripted",
                prompt="Hi",
                stream=True,
                extra_headers={"x-request-timeout-ms": "300"},
            )
        )


def test_a_request_that_lost_its_ttft_target_is_shed_while_others_wait(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """429 with a time to come back: its place goes to one that can still make it."""
    engine.script.load = an_engine_load(waiting=3)
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["load"]["waiting"] == 3)
    patch = {"epoch": 2, "sla": {"ttft_p99_ms": 50}}
    sidecar.admin.patch("/runtime/limits", json=patch)

    with pytest.raises(openai.RateLimitError) as caught:
        complete(sidecar)

    assert caught.value.code == "ttft_lost"
    headers = caught.value.response.headers
    assert int(headers["retry-after"]) * 1000 >= int(headers["retry-after-ms"]) > 0
    wait_until(lambda: engine.running == 0)
    assert outcomes(sidecar) == ["shed"]


@pytest.mark.parametrize("lane", ["interactive", "batch"])
def test_nobody_is_shed_for_nothing(sidecar: Sidecar, engine: ScriptedEngine, lane: str) -> None:
    """Not with an empty queue, and never from the batch lane."""
    waiting = 3 if lane == "batch" else 0
    engine.script.load = an_engine_load(waiting=waiting)
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["load"]["waiting"] == waiting)
    patch = {"epoch": 2, "sla": {"ttft_p99_ms": 20}}
    sidecar.admin.patch("/runtime/limits", json=patch)

    with pytest.raises(openai.InternalServerError) as caught:
        complete(sidecar, **{"x-paceline-lane": lane, "x-request-timeout-ms": "200"})

    assert caught.value.status_code == 504  # it was left alone until its own deadline
    assert outcomes(sidecar) == ["timeout"]


def test_a_hopeless_request_never_reaches_the_engine(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """The backlog and the measured rate say that its first token would come too late."""
    engine.script.steps = [
        a_step(n, at=n / 10, wall_ms=100, prefill=1, waiting_tokens=50) for n in range(20)
    ]
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["steps"])
    patch = {"epoch": 2, "sla": {"ttft_p99_ms": 2000}}
    sidecar.admin.patch("/runtime/limits", json=patch)
    ahead = threading.Thread(target=_complete_a_long_prompt, args=(sidecar,))
    ahead.start()
    wait_until(lambda: engine.running == 1)

    with pytest.raises(openai.RateLimitError) as caught:
        complete(sidecar)

    assert caught.value.code == "hopeless"
    assert len(engine.submitted) == 1
    assert outcomes(sidecar) == ["shed"]
    engine.script.hold_after = None
    ahead.join(timeout=30)
    wait_until(lambda: outcomes(sidecar) == ["shed", "ok"])


def _runs(engine: ScriptedEngine, count: int) -> bool:
    return engine.running == count


def _complete_a_long_prompt(sidecar: Sidecar, **headers: str) -> None:
    sidecar.openai.completions.create(model="scripted", prompt="x" * 200, extra_headers=headers)


def test_a_request_that_cannot_make_its_own_deadline_is_refused_at_once(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """429 with a time to come back, long before the deadline; without any declared target."""
    engine.script.steps = [
        a_step(n, at=n / 10, wall_ms=100, prefill=1, waiting_tokens=50) for n in range(20)
    ]
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["steps"])
    ahead = threading.Thread(target=_complete_a_long_prompt, args=(sidecar,))
    ahead.start()
    wait_until(lambda: engine.running == 1)

    with pytest.raises(openai.RateLimitError) as caught:
        complete(sidecar, **{"x-request-timeout-ms": "2000"})

    assert caught.value.code == "hopeless"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    engine.script.hold_after = None
    ahead.join(timeout=30)


def test_who_waits_is_refused_as_soon_as_it_is_hopeless(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """It was admitted when nothing was known of the engine's pace; then the engine proved slow."""
    ahead = threading.Thread(target=_complete_a_long_prompt, args=(sidecar,))
    ahead.start()
    wait_until(lambda: engine.running == 1)
    errors: list[openai.RateLimitError] = []

    def wait_behind() -> None:
        try:
            complete(sidecar, **{"x-request-timeout-ms": "30000"})
        except openai.RateLimitError as error:
            errors.append(error)

    behind = threading.Thread(target=wait_behind)
    behind.start()
    wait_until(lambda: engine.running == 2)
    load = an_engine_load(waiting=2)
    engine.script.load = msgspec.structs.replace(load, waiting_tokens=1000)
    engine.script.steps = [
        a_step(n, at=n / 10, wall_ms=100, prefill=1, waiting_tokens=50) for n in range(20)
    ]
    patch = {"epoch": 2, "sla": {"ttft_p99_ms": 15_000}}
    sidecar.admin.patch("/runtime/limits", json=patch)

    behind.join(timeout=120)
    assert [error.code for error in errors] == ["hopeless"]
    assert outcomes(sidecar) == ["shed"]
    engine.script.hold_after = None
    ahead.join(timeout=30)


def test_a_person_takes_the_place_of_a_batch_request_in_a_full_queue(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """The one that came last is told to come back; the bound holds."""
    patch = {"epoch": 2, "admission": {"max_queued_requests": 2, "reject_at": 1.0}}
    sidecar.admin.patch("/runtime/limits", json=patch)
    errors: list[openai.RateLimitError] = []

    def wait_in_the_batch_lane() -> None:
        try:
            _complete_a_long_prompt(sidecar, **{"x-paceline-lane": "batch"})
        except openai.RateLimitError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait_in_the_batch_lane) for _ in range(2)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        wait_until(partial(_runs, engine, count))
    person = threading.Thread(target=_complete_a_long_prompt, args=(sidecar,))
    person.start()
    wait_until(lambda: len(errors) == 1)

    wait_until(lambda: engine.running == 2)
    assert errors[0].code == "displaced"
    engine.script.hold_after = None
    for thread in [*threads, person]:
        thread.join(timeout=30)
