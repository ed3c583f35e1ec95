"""A modest caller beside a greedy one, played on the engine's real scheduler."""

from functools import partial

import pytest

from paceline_sidecar.admission.control import AdmissionControl
from paceline_sidecar.admission.tickets import NOBODY, Caller, Ticket
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit
from paceline_wire.limits import Lane, Limits

GREEDY, MODEST = Caller("greedy", 1.0, 4.0), Caller("modest", 1.0, 4.0)
CONFIG = HotConfig(admission=AdmissionPolicy(max_queued_requests=400, reject_at=1.0))
STEP_S = 0.1


class Served:
    """An engine behind admission; a step takes 100 ms for each share that is not its own."""

    def __init__(self, *, shares: int = 1, rows: int = 16, budget: int = 128) -> None:
        capacity = a_capacity(max_batch_size=rows, max_token_budget=budget, num_blocks=2048)
        self.engine = EngineUnderTest(capacity, prefix_caching=False)
        self.clock = self.engine.clock
        self.admission = AdmissionControl(self.clock)
        self.admission.follow(Limits(rows, budget))
        self.waits_s: dict[str, list[float]] = {}
        self.refused = 0
        self._step_s = STEP_S * shares
        self._sent: dict[str, tuple[Ticket, Caller, float]] = {}

    def ask(self, caller: Caller, *, items: int = 1, tokens: int = 40, lane: Lane) -> None:
        """Send one request; count it where it is refused."""
        try:
            tickets = self.admission.admit(
                [tokens] * items, lane=lane, config=CONFIG, caller=caller
            )
        except Refused:
            self.refused += caller is not GREEDY
            return
        for ticket in tickets:
            name = str(len(self._sent))
            self._sent[name] = ticket, caller, self.clock()
            submit = a_submit(name, [1] * tokens, max_tokens=4, lane=lane)
            ticket.send(partial(self.engine.submit, submit))

    def step(self) -> None:
        """Run one step, and hear of it."""
        self.clock.advance(self._step_s)
        for output in self.engine.step():
            ticket, caller, asked_at = self._sent[output.id]
            if ticket.is_waiting:
                self.waits_s.setdefault(caller.id, []).append(self.clock() - asked_at)
            ticket.start()
            if output.finish is not None:
                ticket.leave()


@pytest.mark.parametrize("lane", ["interactive", "batch"])
@pytest.mark.parametrize(("rows", "budget"), [(16, 128), (64, 64)], ids=["rows", "tokens"])
@pytest.mark.parametrize("items", [1, 50], ids=["many requests", "many items"])
def test_a_greedy_key_costs_a_modest_one_its_share_and_no_more(
    lane: Lane, rows: int, budget: int, items: int
) -> None:
    """It waits as if it were alone on half of the engine, but for what the engine held already."""
    alone = Served(shares=2, rows=rows, budget=budget)
    beside = Served(rows=rows, budget=budget)
    for round_ in range(300):
        for _ in range(20):
            beside.ask(GREEDY, items=items, lane=lane)
        if round_ % 4 == 0:
            beside.ask(MODEST, lane=lane)
            alone.ask(MODEST, lane=lane)
        for served in (alone, beside):
            served.step()

    assert beside.refused == 0
    assert len(beside.waits_s["greedy"]) > 4 * len(beside.waits_s["modest"])
    assert len(beside.waits_s["modest"]) >= 74
    assert max(beside.waits_s["modest"]) <= max(alone.waits_s["modest"]) + 8 * STEP_S


def test_weights_divide_what_both_want() -> None:
    """Three to one, in tokens of prompt and output."""
    heavy = Caller("heavy", 3.0, 4.0)
    served = Served()
    for _ in range(400):
        for _ in range(20):
            served.ask(GREEDY, lane="interactive")
            served.ask(heavy, lane="interactive")
        served.step()

    ratio = len(served.waits_s["heavy"]) / len(served.waits_s["greedy"])
    assert ratio == pytest.approx(3.0, rel=0.1)


def test_who_has_no_key_passes_a_request_of_many_items() -> None:
    """Each request counts for itself then: one text does not wait for a thousand."""
    served = Served()
    served.ask(NOBODY, items=800, lane="interactive")
    served.step()

    served.ask(MODEST, lane="interactive")
    for _ in range(10):
        served.step()

    assert served.waits_s["modest"][0] <= 8 * STEP_S


def test_what_waits_for_its_turn_counts_in_the_engines_load() -> None:
    """The tuner and the metrics see one queue, wherever it stands."""
    served = Served()
    served.ask(NOBODY, items=800, lane="batch")
    load = served.engine.engine.load()

    seen = served.admission.with_held(load)

    assert load.waiting < 100
    assert (seen.waiting, seen.waiting_tokens) == (800, 800 * 40)
    assert seen.waiting_by_lane["batch"] == 800


def test_where_nobody_has_two_everything_is_handed_over_at_once() -> None:
    """In the order of arrival, as if there were no fair queueing."""
    served = Served()
    for number in range(300):
        served.ask(Caller(f"key {number}"), lane="interactive")

    assert served.engine.engine.load().waiting == 300
