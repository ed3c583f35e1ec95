"""What one key may do: at a time, a minute, and how it is told."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from paceline_sidecar.admission.key_gate import KeyGate, duration
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, KeyLimits
from paceline_sidecar.keys import ANYONE, Principal
from paceline_testing.clock import ManualClock
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine
from paceline_testing.waiting import wait_until

ALICE, BOB = Principal("alice", "1"), Principal("bob", "2")
RequestAs = Callable[[str], OpenAI]


def policy(**limits: int) -> AdmissionPolicy:
    return AdmissionPolicy(per_key=KeyLimits(**limits))


def enter(gate: KeyGate, rules: AdmissionPolicy, who: Principal = ALICE, tokens: int = 10) -> None:
    gate.enter(who, rules, prompt_tokens=tokens, max_output=10)


def test_a_key_runs_so_many_requests_at_a_time() -> None:
    """Each key for itself, and whoever leaves makes room."""
    gate, rules = KeyGate(ManualClock()), policy(max_concurrent_requests=2)
    first = gate.enter(ALICE, rules, prompt_tokens=1, max_output=1)
    enter(gate, rules)

    with pytest.raises(Refused) as caught:
        enter(gate, rules)
    enter(gate, rules, BOB)
    first.leave(prompt_tokens=1, output_tokens=1, now=0.0)
    first.leave(prompt_tokens=1, output_tokens=1, now=0.0)
    enter(gate, rules)

    assert caught.value.reason == "key_concurrency"
    with pytest.raises(Refused):
        enter(gate, rules)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"requests_per_minute": 6}, "key_requests"), ({"tokens_per_minute": 120}, "key_tokens")],
    ids=["requests", "tokens"],
)
def test_a_key_that_comes_back_when_told_is_let_in_then(
    limits: dict[str, int], reason: str
) -> None:
    """To the moment: a bucket fills at a known rate."""
    clock, rules = ManualClock(), policy(**limits)
    gate = KeyGate(clock)
    for _ in range(6):
        enter(gate, rules)
    with pytest.raises(Refused) as caught:
        enter(gate, rules)

    assert caught.value.reason == reason
    clock.advance(caught.value.retry_after_s * 0.99)
    with pytest.raises(Refused):
        enter(gate, rules)
    clock.advance(caught.value.retry_after_s * 0.01)
    enter(gate, rules)


def test_the_tokens_that_a_request_really_took_are_settled_at_its_end() -> None:
    """More than was expected are a debt, fewer are given back; the rate holds in the long run."""
    clock, rules = ManualClock(), policy(tokens_per_minute=600)
    gate = KeyGate(clock)
    gate.enter(ALICE, rules, prompt_tokens=100, max_output=0).leave(
        prompt_tokens=100, output_tokens=700, now=clock()
    )

    with pytest.raises(Refused) as caught:
        enter(gate, rules, tokens=1)
    headers = gate.headers(ALICE, rules)

    assert caught.value.retry_after_s == pytest.approx((200 + 11) / 10)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    clock.advance(60.0)
    unused = gate.enter(ALICE, rules, prompt_tokens=300, max_output=50)
    unused.leave(prompt_tokens=0, output_tokens=0, now=clock())
    assert gate.headers(ALICE, rules)["x-ratelimit-remaining-tokens"] == "400"


def test_a_request_longer_than_a_minutes_tokens_gets_in_with_a_full_bucket() -> None:
    """Else it would be told to come back for ever."""
    gate, rules = KeyGate(ManualClock()), policy(tokens_per_minute=100)

    enter(gate, rules, tokens=5000)

    with pytest.raises(Refused):
        enter(gate, rules, tokens=1)


def test_a_named_key_has_its_own_limits_and_the_rest_of_everybodys() -> None:
    """What its entry leaves out is as for every key."""
    rules = AdmissionPolicy(
        per_key=KeyLimits(weight=1, max_concurrent_requests=8, tokens_per_minute=1000),
        keys={"alice": KeyLimits(weight=4, tokens_per_minute=9000)},
    )

    assert rules.limits_of("alice") == KeyLimits(4, 8, None, 9000)
    assert rules.limits_of("bob") == rules.limits_of("") == rules.per_key


def test_without_keys_there_are_no_limits_of_keys() -> None:
    """Nobody can be told apart."""
    gate, rules = KeyGate(ManualClock()), policy(max_concurrent_requests=1, tokens_per_minute=1)
    for _ in range(9):
        enter(gate, rules, ANYONE)

    assert gate.headers(ANYONE, rules) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.02, "20ms"), (1.5, "1.5s"), (59.0, "59s"), (360.0, "6m0s"), (85, "1m25s")],
)
def test_times_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    """Its clients parse them."""
    assert duration(seconds) == text


@pytest.fixture
def keyed(run_dir: Path, engine: ScriptedEngine, start: Callable[..., Sidecar]) -> Sidecar:
    del engine
    path = run_dir / "keys"
    path.write_text("alice: alpha\nbob: beta\n")
    sidecar = start(api_keys_file=path)
    wait_until(sidecar.ready)
    return sidecar


def complete(sidecar: Sidecar, key: str) -> openai.types.Completion:
    with OpenAI(base_url=f"{sidecar.url}/v1", api_key=key, max_retries=0, timeout=30) as client:
        return client.completions.create(model="scripted", prompt="Hi", max_tokens=4)


def test_a_keys_limits_are_changed_while_it_serves(keyed: Sidecar, engine: ScriptedEngine) -> None:
    """One in flight: the next gets 429 with the reason, another key is served."""
    patch = {"epoch": 2, "admission": {"keys": {"alice": {"max_concurrent_requests": 1}}}}
    assert keyed.admin.patch("/runtime/limits", json=patch).status_code == 200
    engine.script.hold_after = 1
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(complete, keyed, "alpha")
        wait_until(lambda: engine.running == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            complete(keyed, "alpha")
        other = pool.submit(complete, keyed, "beta")
        wait_until(lambda: engine.running == 2)
        engine.script.hold_after = None
        first.result(timeout=30)
        other.result(timeout=30)

    assert caught.value.code == "key_concurrency"
    assert int(caught.value.response.headers["retry-after-ms"]) > 0
    complete(keyed, "alpha")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answers_carry_openais_rate_limit_headers(keyed: Sidecar, stream: bool) -> None:
    """Whole answers, streams and refusals; not where the key has no such limit."""
    limits = {"requests_per_minute": 2, "tokens_per_minute": 60}
    patch = {"epoch": 2, "admission": {"keys": {"alice": limits}}}
    keyed.admin.patch("/runtime/limits", json=patch)
    body = {"model": "scripted", "prompt": "Hi", "max_tokens": 4, "stream": stream}

    def post(key: str) -> dict[str, str]:
        headers = {"authorization": f"Bearer {key}"}
        answer = keyed.public.post("/v1/completions", json=body, headers=headers)
        return {
            name.removeprefix("x-ratelimit-"): value
            for name, value in answer.headers.items()
            if name.startswith("x-ratelimit-")
        } | {"status": str(answer.status_code)}

    first, _, third = post("alpha"), post("alpha"), post("alpha")

    assert post("beta") == {"status": "200"}
    assert (first["limit-requests"], first["limit-tokens"]) == ("2", "60")
    assert first["remaining-requests"] == "1"
    assert 50 < int(first["remaining-tokens"]) < 60
    assert first["reset-requests"].endswith("s")
    assert (third["status"], third["remaining-requests"]) == ("429", "0")


@pytest.mark.parametrize(
    ("change", "fields", "param"),
    [
        ({"max_prompt_tokens": 5}, {"prompt": "much longer"}, "prompt"),
        ({"max_output_tokens": 3}, {"prompt": "Hi", "max_tokens": 4}, "max_tokens"),
    ],
    ids=["prompt", "output"],
)
def test_a_request_has_no_more_tokens_than_the_service_allows(
    sidecar: Sidecar,
    engine: ScriptedEngine,
    change: dict[str, int],
    fields: dict[str, object],
    param: str,
) -> None:
    """A 400 with the field's name; who asks for no number gets what is allowed."""
    sidecar.admin.patch("/runtime/limits", json={"epoch": 2, "admission": change})

    refused = sidecar.public.post("/v1/completions", json={"model": "scripted", **fields})
    chat = {"model": "scripted", "messages": [{"role": "user", "content": ""}]}
    fine = sidecar.public.post("/v1/chat/completions", json=chat)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    most = change.get("max_output_tokens")
    if most:
        assert fine.json()["usage"]["completion_tokens"] == most
        assert engine.submitted[-1].sampling.max_tokens == most
