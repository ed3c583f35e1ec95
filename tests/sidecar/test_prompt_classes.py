"""First-token targets by prompt length in the sidecar: who is refused, whose turn it is, misses."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_sidecar.admission.control import AdmissionControl
from paceline_sidecar.admission.tickets import Ticket
from paceline_sidecar.admission.turns import OrderKind
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, PromptClass, Sla
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome, miss_reason
from paceline_sidecar.metrics.ledger import Ledger
from paceline_sidecar.openai.job import estimate
from paceline_sidecar.runtime_patch import ConfigPatch, merged
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import (
    ScriptedEngine,
    a_step,
    an_engine_load,
)
from paceline_testing.waiting import wait_until

SHORT, LONG = PromptClass(300, 500.0), PromptClass(None, 4000.0)
BY_PROMPT = Sla(ttft_p99_ms=4000.0, ttft_by_prompt_tokens=(SHORT, LONG))
WRITTEN: list[dict[str, Any]] = [
    {"up_to": 300, "ttft_p99_ms": 500},
    {"up_to": None, "ttft_p99_ms": 4000},
]


def by_prompt(order: OrderKind = "Fifo", **fields: Any) -> HotConfig:
    return HotConfig(BY_PROMPT, AdmissionPolicy(order=order), **fields)


def an_admission() -> AdmissionControl:
    """Its engine has shown that it computes a thousand prompt tokens a second."""
    admission = AdmissionControl(lambda: 0.0)
    admission.rate.learn([a_step(1, at=0.0, wall_ms=1e3, prefill=1000, waiting_tokens=9000)])
    return admission


def admitted(
    admission: AdmissionControl, *tokens: int, config: HotConfig, at: float = 0.0
) -> list[Ticket]:
    return admission.admit([*tokens], lane="interactive", config=config, arrived_at=at)


@settings(deadline=None)
@given(
    prompt_tokens=st.integers(0, 10**6),
    ends=st.lists(st.integers(1, 10**6), max_size=7, unique=True).map(sorted),
)
def test_every_prompt_has_the_target_of_the_first_class_that_holds_it(
    prompt_tokens: int, ends: list[int]
) -> None:
    """As the tuner judges it."""
    targets = [100.0 * (place + 1) for place in range(len(ends) + 1)]
    sla = Sla(ttft_by_prompt_tokens=tuple(map(PromptClass, [*ends, None], targets)))

    assert sla.ttft_ms(prompt_tokens) == targets[sum(end < prompt_tokens for end in ends)]


def test_an_end_to_end_target_bounds_each_class() -> None:
    """A quarter of it, where that is nearer."""
    sla = Sla(e2e_p99_ms=8000.0, ttft_by_prompt_tokens=(SHORT, LONG))

    assert (sla.first_token_ms(100), sla.first_token_ms(9000)) == (500.0, 2000.0)


def test_the_first_token_that_is_due_next_comes_first_and_equals_as_they_came() -> None:
    """A short prompt passes a long one that came a moment before, and none that is due before."""
    admission, config = AdmissionControl(lambda: 0.0), by_prompt()

    first = admitted(admission, 5000, config=config, at=0.0)[0]
    late = admitted(admission, 100, config=config, at=3.6)[0]
    short = [admitted(admission, 100, config=config, at=1.0 + n / 10)[0] for n in range(3)]
    next_long = admitted(admission, 900, config=config, at=1.0)[0]

    tickets = [first, late, *short, next_long]
    order = sorted(tickets, key=lambda ticket: ticket.turn_at or 0.0)
    assert order == [*short, first, late, next_long]


@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 10**5)), min_size=2, max_size=20))
def test_nobody_is_overtaken_by_who_comes_after_its_target(rows: list[tuple[float, int]]) -> None:
    """So however many short ones come, a long one begins."""
    admission = AdmissionControl(lambda: 0.0)
    tickets = [admitted(admission, tokens, config=by_prompt(), at=at)[0] for at, tokens in rows]

    for (at, tokens), ticket in zip(rows, tickets, strict=True):
        assert ticket.turn_at is not None
        due_at = at + (BY_PROMPT.ttft_ms(tokens) or 0.0) / 1e3
        assert ticket.turn_at == pytest.approx(due_at)


def test_without_classes_all_go_as_they_come() -> None:
    admission = an_admission()

    flat = HotConfig(Sla(ttft_p99_ms=4000.0))

    assert flat.is_first_come
    assert not by_prompt().is_first_come
    assert admitted(admission, 100, config=flat)[0].turn_at is None


def test_short_prompts_first_have_the_patience_of_their_class() -> None:
    """However slow the pod, a prompt has its turn within its own target."""
    admission, config = an_admission(), by_prompt("ShortestFirst")

    short = admitted(admission, 300, config=config)[0].turn_at
    long = admitted(admission, 301, config=config)[0].turn_at

    assert short is not None
    assert long is not None
    assert short < 0.5 < long < 4.0


def test_each_prompt_is_refused_by_its_own_target() -> None:
    """What is in the way of both leaves a long one in time, and a short one not."""
    admission, config = an_admission(), by_prompt()
    for tokens in (290, 200):
        admitted(admission, tokens, config=config)

    admitted(admission, 1000, config=config)

    with pytest.raises(Refused, match=r"later than the 0\.5 s"):
        admitted(admission, 290, config=config)


def test_a_short_prompt_is_not_refused_for_long_ones_that_are_due_later() -> None:
    admission = an_admission()
    admitted(admission, 3000, config=by_prompt())

    admitted(admission, 200, config=by_prompt())

    flat = an_admission()
    admitted(flat, 3000, config=HotConfig(Sla(ttft_p99_ms=500.0)))
    with pytest.raises(Refused):
        admitted(flat, 200, config=HotConfig(Sla(ttft_p99_ms=500.0)))


def test_a_request_of_several_prompts_has_the_time_of_its_longest() -> None:
    """All of it is given up at once, so it is not given up for the shortest."""
    admission, config = an_admission(), by_prompt()
    refused: list[str] = []

    def give_way(refusal: Refused) -> bool:
        refused.append(refusal.reason)
        return True

    for ticket in admitted(admission, 900, 200, config=config):
        ticket.party.give_way = give_way
        ticket.send(lambda: None)
    admission.sweep(config, 1.0, computed_ahead=0)

    assert refused == []


def test_a_request_has_the_turn_and_the_time_of_what_the_tokenizer_counted() -> None:
    """Its estimate was short by a half; every choice of a prompt is of the prompt's class."""
    admission, config = AdmissionControl(lambda: 0.0), by_prompt()
    tickets = admitted(admission, 200, 1, config=config, at=7.0)
    assert [ticket.turn_at for ticket in tickets] == [7.5, 7.5]

    admission.retime(tickets, [400, 400], config)

    assert [ticket.turn_at for ticket in tickets] == [11.0, 11.0]
    assert tickets[0].party.longest == 400


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("word " * 100, 126), ("字" * 400, 301), ([5] * 77, 77), ("\ud800" * 4, 4), ("", 1)],
    ids=["English", "Chinese", "tokens", "no character", "nothing"],
)
def test_a_prompts_class_is_estimated_by_its_bytes(prompt: str | list[int], tokens: int) -> None:
    """Chinese has about a token for each character of three bytes."""
    assert estimate(prompt) == tokens


def test_choices_that_are_refused_are_of_their_prompts_class(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Though only the first of them would have computed the prompt."""
    engine.script.hold_after = 0
    classes = [{"up_to": 10, "ttft_p99_ms": 50}, {"ttft_p99_ms": 60_000}]
    body = {
        "epoch": 2,
        "lease_s": 60,
        "sla": {"ttft_by_prompt_tokens": classes},
        "admission": {"max_queued_requests": 1},
    }
    assert sidecar.admin.patch("/runtime/limits", json=body).status_code == 200

    held: dict[str, Any] = {"model": "scripted", "prompt": [5] * 20}
    asked = {"model": "scripted", "prompt": [[5] * 20, [5] * 5], "n": 2}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(sidecar.public.post, "/v1/completions", json=held)
        wait_until(lambda: engine.running == 1)
        assert sidecar.public.post("/v1/completions", json=asked).status_code == 429
        requests = sidecar.admin.get("/runtime/telemetry").json()["requests"]
        engine.script.hold_after = None
        first.result(timeout=30)

    assert [each["prompt_tokens"] for each in requests] == [20, 20, 5, 5]


@pytest.mark.parametrize(
    ("prompt_tokens", "ttft_ms", "reason"),
    [(300, 600.0, "ttft"), (301, 600.0, None), (301, 4001.0, "ttft"), (300, 500.0, None)],
    ids=["short and late", "long and in time", "long and late", "short and in time"],
)
def test_a_miss_is_by_the_target_of_the_prompt(
    prompt_tokens: int, ttft_ms: float, reason: str | None
) -> None:
    record = FinishedRequest(
        "interactive", 0.0, 9.0, "ok", ttft_ms=ttft_ms, prompt_tokens=prompt_tokens
    )

    assert miss_reason(record, BY_PROMPT) == reason


def test_each_class_counts_first_tokens_in_time_and_late() -> None:
    """Whoever got none was late; who left in time was offered nothing."""
    ledger = Ledger()
    ledger.follow(by_prompt())
    rows: list[tuple[int, float | None, Outcome]] = [
        (100, 90.0, "ok"),
        (100, 90.0, "failed"),
        (100, 600.0, "ok"),
        (100, None, "refused"),
        (100, None, "cancelled"),
        (100, 90.0, "cancelled"),
        (100, 600.0, "cancelled"),
        (9000, 600.0, "ok"),
    ]
    for tokens, ttft_ms, outcome in rows:
        ledger.ended(
            FinishedRequest("interactive", 0.0, 9.0, outcome, ttft_ms=ttft_ms, prompt_tokens=tokens)
        )

    counts = ledger.lanes["interactive"]
    assert (counts.in_time["300"], counts.late["300"]) == (2, 3)
    assert (counts.in_time["+Inf"], counts.late["+Inf"]) == (1, 0)


def patched(config: HotConfig, **sla: Any) -> Sla:
    """What holds after a change of `sla`, as it comes over the wire."""
    body = msgspec.json.encode({"sla": sla})
    return merged(config, msgspec.json.decode(body, type=ConfigPatch)).sla


def test_classes_bring_the_loosest_as_the_one_target() -> None:
    """Whatever knows one target alone has one that every prompt of the service keeps."""
    assert patched(HotConfig(), ttft_by_prompt_tokens=WRITTEN) == BY_PROMPT


def test_an_operator_that_knows_one_target_leaves_one() -> None:
    """It names no classes; what a newer one left would go on refusing short prompts."""
    assert patched(by_prompt(), ttft_p99_ms=900, objective=0.95) == Sla(900.0, objective=0.95)
    assert patched(by_prompt(), ttft_p99_ms=None) == Sla()
    assert patched(by_prompt(), ttft_by_prompt_tokens=[], ttft_p99_ms=900) == Sla(900.0)


def test_a_change_of_another_target_leaves_the_classes() -> None:
    assert patched(by_prompt(), itl_p99_ms=50).ttft_by_prompt_tokens == (SHORT, LONG)


@pytest.mark.parametrize(
    ("classes", "rule"),
    [
        ([{"up_to": 300, "ttft_p99_ms": 500}], "the last has none"),
        ([{"ttft_p99_ms": 500}, {"ttft_p99_ms": 900}], "every class has an up_to"),
        (
            [{"up_to": 9, "ttft_p99_ms": 1}, {"up_to": 9, "ttft_p99_ms": 1}, {"ttft_p99_ms": 1}],
            "each up_to is above",
        ),
        ([{"up_to": 9, "ttft_p99_ms": 2}, {"ttft_p99_ms": 1}], "no target is below"),
        ([{"up_to": 0, "ttft_p99_ms": 1}, {"ttft_p99_ms": 1}], "up_to"),
        ([{"up_to": 1.5, "ttft_p99_ms": 1}, {"ttft_p99_ms": 1}], "up_to"),
        ([{"up_to": 9, "ttft_p99_ms": 0}, {"ttft_p99_ms": 1}], "ttft_p99_ms"),
        ([{"up_to": 9, "ttft_p99_ms": 1, "p99": 1}, {"ttft_p99_ms": 1}], "p99"),
        ([{"up_to": 9}, {"ttft_p99_ms": 1}], "ttft_p99_ms"),
        ([{"up_to": n + 1, "ttft_p99_ms": 1} for n in range(8)] + [{"ttft_p99_ms": 1}], "length"),
        ("none", "array"),
    ],
)
def test_bad_classes_are_refused_with_the_field_and_the_rule(
    sidecar: Sidecar, classes: object, rule: str
) -> None:
    """422, and what held holds."""
    before = sidecar.admin.get("/runtime/limits").json()["sla"]

    body = {"epoch": 99, "sla": {"ttft_by_prompt_tokens": classes}}
    refused = sidecar.admin.patch("/runtime/limits", json=body)

    assert refused.status_code == 422
    assert rule in refused.json()["error"]["message"]
    assert "ttft_by_prompt_tokens" in refused.json()["error"]["message"]
    assert sidecar.admin.get("/runtime/limits").json()["sla"] == before


def test_a_short_prompt_is_given_up_at_its_target_and_a_long_one_is_not(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """By what the tokenizer counted, and while others wait in the engine."""
    engine.script.hold_after = 0
    engine.script.load = an_engine_load(waiting=3)
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["load"]["waiting"] == 3)
    classes = [{"up_to": 10, "ttft_p99_ms": 50}, {"ttft_p99_ms": 600_000}]
    body = {"epoch": 2, "lease_s": 60, "sla": {"ttft_by_prompt_tokens": classes}}
    assert sidecar.admin.patch("/runtime/limits", json=body).status_code == 200

    def ask(num_tokens: int) -> str:
        body = {"model": "scripted", "prompt": [5] * num_tokens}
        headers = {"x-request-timeout-ms": "3000"}
        answer = sidecar.public.post("/v1/completions", json=body, headers=headers)
        return str(answer.json()["error"]["code"])

    assert ask(10) == "ttft_lost"
    assert ask(11) == "deadline_exceeded"  # it was left alone until its own deadline
