"""Short prompts first, where the service asks for it, and what that may cost a long one."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from paceline_sidecar.admission.control import AdmissionControl
from paceline_sidecar.admission.fair_queue import FairQueue
from paceline_sidecar.admission.tickets import Caller, Ticket
from paceline_sidecar.admission.turns import OrderKind, turn_at
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, Sla
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine, a_step
from paceline_wire.limits import Limits

TOKENS_PER_S = 1000.0


def ordered(order: OrderKind, *, ttft_s: float = 2.0) -> HotConfig:
    return HotConfig(Sla(ttft_p99_ms=1e3 * ttft_s), AdmissionPolicy(order=order))


def an_admission() -> AdmissionControl:
    """Its engine has shown that it computes a thousand prompt tokens a second."""
    admission = AdmissionControl(lambda: 0.0)
    admission.rate.learn([a_step(1, at=0.0, wall_ms=1e3, prefill=1000, waiting_tokens=9000)])
    assert admission.rate.tokens_per_s == TOKENS_PER_S
    return admission


def admitted(admission: AdmissionControl, tokens: int, config: HotConfig) -> Ticket:
    return admission.admit([tokens], lane="interactive", config=config)[0]


@settings(deadline=None)
@given(
    arrived_at=st.floats(0, 1e6),
    tokens=st.integers(1, 10**6),
    more=st.integers(1, 10**6),
    rate=st.floats(1, 1e6),
    patience_s=st.floats(0, 1e4),
)
def test_a_turn_is_the_later_the_longer_the_prompt_and_within_its_patience(
    arrived_at: float, tokens: int, more: int, rate: float, patience_s: float
) -> None:
    """So nobody is overtaken by who comes later than that, however long its prompt."""
    turns = [
        turn_at(arrived_at, tokens=length, rate=rate, patience_s=patience_s)
        for length in (tokens, tokens + more)
    ]

    rounding = 1e-9 * (1 + arrived_at + patience_s)
    assert arrived_at <= turns[0] <= turns[1] + rounding
    assert turns[1] <= arrived_at + patience_s + rounding


def test_where_nobody_has_waited_of_late_prompts_go_as_they_come() -> None:
    """Nothing says how long one takes, and there is nothing to put in order."""
    assert turn_at(5.0, tokens=9000, rate=None, patience_s=2.0) == 5.0


def test_a_short_prompt_is_not_refused_for_long_ones_that_it_passes() -> None:
    """1.8 s of prompts wait: behind them its first token would be late, before them it is not."""
    as_they_come, shortest_first = an_admission(), an_admission()
    for _ in range(3):
        admitted(as_they_come, 600, ordered("Fifo"))
        admitted(shortest_first, 600, ordered("ShortestFirst"))

    admitted(shortest_first, 250, ordered("ShortestFirst"))

    with pytest.raises(Refused, match="after about"):
        admitted(as_they_come, 250, ordered("Fifo"))


def test_a_long_prompt_that_short_ones_have_passed_is_refused_when_it_is_hopeless() -> None:
    """It is found behind them, where it is computed, and not where it came."""
    admission, config = an_admission(), ordered("ShortestFirst")
    refused: list[str] = []

    def give_way(name: str, _refusal: Refused) -> bool:
        refused.append(name)
        return True

    tickets = {"long": admitted(admission, 1500, config)}
    tickets.update({f"short {n}": admitted(admission, 100, config) for n in range(12)})
    for name, ticket in tickets.items():
        ticket.party.give_way = partial(give_way, name)
        ticket.send(lambda: None)

    admission.sweep(config, 0.0, computed_ahead=0)

    assert refused == ["long"]


def test_when_to_come_back_counts_what_is_worked_off_by_the_order() -> None:
    """The short prompt that came last is worked on: of the long one nothing is done."""
    now = 0.0
    admission = AdmissionControl(lambda: now)
    admission.rate.learn([a_step(1, at=0.0, wall_ms=1e3, prefill=1000, waiting_tokens=9000)])
    config = ordered("ShortestFirst", ttft_s=1.0)
    admitted(admission, 800, config)
    admitted(admission, 100, config)
    now = 0.5

    wait_s = admission.comeback_s("interactive", 900, config)

    # 800 tokens too many are in the way; after half a second 100 of them are done, and not 500.
    assert wait_s == pytest.approx(0.7, abs=0.1)


def test_a_client_that_names_a_short_timeout_gains_no_earlier_turn() -> None:
    """The service's own time limit counts."""
    admission, config = an_admission(), HotConfig(admission=AdmissionPolicy(order="ShortestFirst"))

    tickets = [
        admission.admit([500], lane="interactive", config=config, timeout_s=each)[0]
        for each in (60.0, 1.0)
    ]

    assert tickets[0].turn_at == tickets[1].turn_at


def test_in_a_callers_flow_turns_count_and_between_callers_fairness() -> None:
    """A caller's short prompts pass its own long ones; another's long one keeps its share."""
    queue: FairQueue[str] = FairQueue()
    for number in range(4):
        queue.push(f"long {number}", flow="a", cost=10, weight=1.0, turn_at=10.0 + number)
    queue.push("other's long", flow="b", cost=10, weight=1.0, turn_at=99.0)
    queue.push("short", flow="a", cost=1, weight=1.0, turn_at=1.0)

    order = [queue.pop() for _ in range(6)]

    assert order.index("other's long") <= 2
    assert order[0] == "short"
    assert [item for item in order if item.startswith("long")] == [f"long {n}" for n in range(4)]


@pytest.mark.parametrize("keys", [False, True], ids=["no keys", "one key"])
def test_a_flood_of_short_prompts_does_not_starve_a_long_one(keys: bool) -> None:
    """On the engine's real scheduler: all that begins before it came before its turn."""
    config = HotConfig(
        Sla(ttft_p99_ms=2000.0),
        AdmissionPolicy(order="ShortestFirst", shed_hopeless=False, max_queued_requests=10_000),
    )
    capacity = a_capacity(
        max_batch_size=16, max_token_budget=128, num_blocks=2048, max_model_len=1024
    )
    engine = EngineUnderTest(capacity, prefix_caching=False)
    admission = AdmissionControl(engine.clock)
    admission.follow(Limits(16, 128))
    admission.rate.learn([a_step(1, at=0.0, wall_ms=1e3, prefill=1280, waiting_tokens=9000)])
    sent: dict[str, Ticket] = {}

    def ask(name: str, tokens: int) -> None:
        ticket = admission.admit(
            [tokens],
            lane="interactive",
            config=config,
            arrived_at=engine.clock(),
            caller=Caller("one" if keys else ""),
        )[0]
        sent[name] = ticket
        submit = a_submit(name, [1] * tokens, max_tokens=1)
        ticket.send(partial(engine.submit, replace(submit, turn_at=ticket.turn_at)))

    begun: list[str] = []
    for step in range(60):
        for number in range(6):  # 240 tokens each 100 ms, of which 128 are computed
            ask(f"{step} {number}", 40)
        if step == 5:
            ask("long", 640)
        engine.clock.advance(0.1)
        for output in engine.step():
            assert output.finish == "length"
            begun.append(output.id)
            sent[output.id].start()
            sent[output.id].leave()

    assert "long" in begun
    its_turn = sent["long"].turn_at
    assert its_turn is not None
    before = [sent[name].party.arrived_at for name in begun[: begun.index("long")]]
    assert any(at > sent["long"].party.arrived_at for at in before)  # some have passed it
    # Of each of its ten steps the other half goes to those that are next: what came in 0.3 s.
    assert max(before) <= its_turn + 0.5


def test_the_order_is_changed_without_a_restart(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """The engine gets turns from then on, and none before and after."""
    for epoch, order in enumerate(("Fifo", "ShortestFirst", "Fifo"), 2):
        patch = {"epoch": epoch, "lease_s": 60.0, "admission": {"order": order}}
        assert sidecar.admin.patch("/runtime/limits", json=patch).status_code == 200
        sidecar.openai.completions.create(model="scripted", prompt="Hi")

    turns = [submit.turn_at for submit in engine.submitted]
    assert turns == [None, engine.submitted[1].arrived_at, None]
