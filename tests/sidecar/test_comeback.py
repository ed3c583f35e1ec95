"""`Retry-After` is right: played on the engine's real scheduler, whose steps move the clock."""

import pytest

from paceline_sidecar.admission.control import AdmissionControl
from paceline_sidecar.admission.outage import Outage
from paceline_sidecar.admission.rules import Arrival, refuse
from paceline_sidecar.admission.tickets import Ticket
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, Sla
from paceline_testing.clock import ManualClock
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit
from paceline_wire.limits import Lane

PROMPT = 60
PLACES = HotConfig(admission=AdmissionPolicy(max_queued_requests=40, reject_at=1.0))
TOKENS = HotConfig(
    admission=AdmissionPolicy(max_queued_requests=1000, max_queued_tokens=2400, reject_at=1.0)
)
TTFT = HotConfig(Sla(ttft_p99_ms=4000), AdmissionPolicy(max_queued_requests=1000, reject_at=1.0))


class Played:
    """An engine behind admission; a step takes 20 ms, and 1 ms for each of its tokens."""

    def __init__(self, config: HotConfig) -> None:
        capacity = a_capacity(max_batch_size=32, max_token_budget=128, num_blocks=1024)
        self.engine = EngineUnderTest(capacity, prefix_caching=False)
        self.clock = self.engine.clock
        self.engine.runner.before_run = lambda batch: self.clock.advance(
            0.02 + 0.001 * batch.num_tokens
        )
        self.config = config
        self.admission = AdmissionControl(self.clock)
        self._tickets: dict[str, Ticket] = {}

    def ask(self, *, lane: Lane = "interactive", tokens: int = PROMPT, output: int = 4) -> None:
        """Send one request; raises `Refused`."""
        (ticket,) = self.admission.admit(
            [tokens], lane=lane, config=self.config, arrived_at=self.clock()
        )
        name = str(len(self._tickets))
        self._tickets[name] = ticket
        self.engine.submit(a_submit(name, [1] * tokens, max_tokens=output, lane=lane))

    def step(self) -> None:
        """Run one step, and hear of it; time passes also where there is none."""
        before = self.clock()
        for output in self.engine.step():
            self._tickets[output.id].leave()
        self.admission.rate.learn(self.engine.engine.log.take())
        self.clock.advance(0.0 if self.clock() > before else 0.05)

    def would_admit(self, tokens: int) -> bool:
        """Whether a request would get in now."""
        arrival = Arrival("interactive", tokens)
        rate = self.admission.rate.tokens_per_s
        return refuse(self.admission.queue, arrival, config=self.config, rate=rate) is None

    def fill(self) -> None:
        """Send as many as get in, once the rate is known."""
        for _ in range(30):
            self.ask()
        for _ in range(12):
            self.step()
        self.until_refused()

    def until_refused(self) -> None:
        """Send what gets in."""
        for _ in range(1000):
            if not self.would_admit(PROMPT):
                return
            self.ask()
        raise AssertionError("nobody was refused")


@pytest.mark.parametrize("tokens", [30, 60, 110])
@pytest.mark.parametrize("config", [PLACES, TOKENS, TTFT], ids=["places", "tokens", "ttft"])
def test_who_comes_back_when_told_is_admitted_then_and_not_much_before(
    config: HotConfig, tokens: int
) -> None:
    """Within 30 %, and the length of the step that nobody can look into."""
    played = Played(config)
    played.fill()
    while played.would_admit(tokens):
        played.ask(tokens=tokens)
    for _ in range(2):  # who are told to come back before it
        with pytest.raises(Refused):
            played.ask(tokens=tokens)
    with pytest.raises(Refused) as caught:
        played.ask(tokens=tokens)
    refused_at, told_s = played.clock(), caught.value.retry_after_s

    needed = 3 * tokens if config is not PLACES else None
    while not (played.would_admit(needed) if needed else _has_places(played, 3)):
        played.step()

    took_s = played.clock() - refused_at
    assert abs(told_s - took_s) <= 0.3 * took_s + 0.15


def _has_places(played: Played, places: int) -> bool:
    arrival = Arrival("interactive", PROMPT, places=places)
    return refuse(played.admission.queue, arrival, config=played.config, rate=None) is None


@pytest.mark.parametrize("config", [PLACES, TOKENS, TTFT], ids=["places", "tokens", "ttft"])
def test_a_burst_that_comes_back_as_told_comes_one_after_the_other(config: HotConfig) -> None:
    """All at once they would be refused again, but for the first."""
    played = Played(config)
    played.fill()
    back_at: list[float] = []
    for _ in range(100):
        with pytest.raises(Refused) as caught:
            played.ask()
        back_at.append(played.clock() + caught.value.retry_after_s)

    again = 0
    while back_at:
        if played.clock() < min(back_at):
            played.step()
            continue
        back_at.remove(min(back_at))
        try:
            played.ask()
        except Refused as refusal:
            again += 1
            back_at.append(played.clock() + refusal.retry_after_s)

    assert again <= 30


def test_the_end_of_an_outage_is_predicted_by_the_last_start() -> None:
    """What is left of a usual start; beyond it, half of the time that it lasts already."""
    clock = ManualClock()
    outage = Outage(clock)
    clock.advance(40.0)
    outage.end(is_start=True)
    assert outage.remaining_s == 1.0

    outage.begin()
    clock.advance(10.0)
    outage.begin()
    assert outage.remaining_s == pytest.approx(30.0)
    clock.advance(40.0)
    assert outage.remaining_s == pytest.approx(25.0)


def test_an_engine_that_was_only_silent_says_nothing_of_a_start() -> None:
    """It needs no weights."""
    clock = ManualClock()
    outage = Outage(clock)
    clock.advance(40.0)
    outage.end(is_start=True)
    outage.begin()
    clock.advance(3.0)
    outage.end(is_start=False)

    outage.begin()

    assert outage.remaining_s == pytest.approx(40.0)
