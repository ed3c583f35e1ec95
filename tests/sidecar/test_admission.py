"""Who is admitted, who is turned away, and when to come back."""

import pytest
from msgspec.structs import replace

from paceline_sidecar.admission.control import AdmissionControl
from paceline_sidecar.admission.forecast import PrefillRate, seconds_to_first_token
from paceline_sidecar.admission.rules import Arrival, Backlog, refuse
from paceline_sidecar.admission.tickets import hopeless
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, Sla
from paceline_testing.scripted_engine import a_step, an_engine_load
from paceline_wire.limits import Lane

FOUR = HotConfig(admission=AdmissionPolicy(max_queued_requests=5, reject_at=0.8))
HUNDRED = HotConfig(admission=AdmissionPolicy(max_queued_requests=100, reject_at=1.0))
HALF_A_SECOND = HotConfig(sla=Sla(ttft_p99_ms=500))


def test_requests_are_refused_from_the_share_of_the_queue_on() -> None:
    """Counted on arrival: four of five at 0.8."""
    admission = AdmissionControl()
    for _ in range(4):
        admission.admit([10], lane="interactive", config=FOUR)

    with pytest.raises(Refused, match="4 requests wait, at most 4 may") as caught:
        admission.admit([10], lane="interactive", config=FOUR)
    assert caught.value.reason == "queue_full"
    assert not caught.value.shed
    assert admission.queue == Backlog(requests=4, tokens=40)


def test_a_request_of_many_items_leaves_the_others_their_places() -> None:
    """One in eight places at most is its own, and it passes them on from item to item."""
    admission = AdmissionControl()
    tickets = admission.admit([1] * 800, lane="batch", config=HUNDRED)
    assert admission.queue == Backlog(12, 800, 12, 800)

    for ticket in tickets[:790]:
        ticket.leave()

    assert admission.queue == Backlog(10, 10, 10, 10)
    for _ in range(90):
        admission.admit([1], lane="batch", config=HUNDRED)
    with pytest.raises(Refused):
        admission.admit([1], lane="batch", config=HUNDRED)


def test_a_request_of_several_prompts_gets_in_whole_or_not_at_all() -> None:
    """Half of it would be of no use to its client."""
    admission = AdmissionControl()
    for _ in range(98):
        admission.admit([1], lane="interactive", config=HUNDRED)

    with pytest.raises(Refused):
        admission.admit([1] * 5, lane="interactive", config=HUNDRED)
    assert admission.queue == Backlog(98, 98)


def test_the_first_token_gives_the_place_free_once() -> None:
    """Leaving twice, as close after first token does, is leaving once."""
    admission = AdmissionControl()
    ticket, other = admission.admit([10, 20], lane="interactive", config=HUNDRED)
    ticket.count(14)
    assert admission.queue == Backlog(requests=2, tokens=34)

    ticket.leave()
    ticket.leave()
    ticket.count(99)

    assert admission.queue == Backlog(requests=1, tokens=20)
    other.leave()
    assert admission.queue == Backlog()


@pytest.mark.parametrize(
    ("waiting", "own", "refused"),
    [(Backlog(1, 70), 10, False), (Backlog(1, 75), 10, True), (Backlog(), 5000, False)],
    ids=["below", "above", "a long prompt alone"],
)
def test_waiting_tokens_are_capped_as_well(waiting: Backlog, own: int, refused: bool) -> None:
    """A hundred tokens, refused from 80 on; but a long prompt gets in when nobody waits."""
    config = HotConfig(admission=AdmissionPolicy(max_queued_tokens=100, reject_at=0.8))

    refusal = refuse(waiting, Arrival("interactive", own), config=config, rate=None)

    assert (refusal is not None) is refused
    assert refusal is None or refusal.reason == "queue_tokens"


def test_a_hopeless_request_is_refused_at_once() -> None:
    """1,000 tokens ahead at 1,000 tokens a second are more than half a second."""
    arrival = Arrival("interactive", 100)

    refusal = refuse(Backlog(3, 1000), arrival, config=HALF_A_SECOND, rate=1000.0)

    assert refusal is not None
    assert refusal.reason == "hopeless"
    assert refusal.shed


@pytest.mark.parametrize(
    ("sla", "refused"),
    [
        (Sla(e2e_p99_ms=4000), True),
        (Sla(e2e_p99_ms=4800), False),
        (Sla(ttft_p99_ms=1000, e2e_p99_ms=60_000), True),
        (Sla(ttft_p99_ms=9000, e2e_p99_ms=4000), True),
    ],
    ids=["a quarter is too short", "a quarter is enough", "the nearer is TTFT", "or the quarter"],
)
def test_the_first_token_has_a_quarter_of_an_end_to_end_target(sla: Sla, refused: bool) -> None:
    """1,100 tokens at 1,000 a second: who begins later than that ends too late."""
    arrival = Arrival("interactive", 100)

    refusal = refuse(Backlog(3, 1000), arrival, config=HotConfig(sla), rate=1000.0)

    assert (refusal is not None) is refused


@pytest.mark.parametrize(
    ("queue", "rate", "lane", "config"),
    [
        (Backlog(), 1000.0, "interactive", HALF_A_SECOND),
        (Backlog(3, 1000), None, "interactive", HALF_A_SECOND),
        (Backlog(3, 300), 1000.0, "interactive", HALF_A_SECOND),
        (Backlog(3, 1000), 1000.0, "batch", HALF_A_SECOND),
        (Backlog(3, 1000), 1000.0, "interactive", HotConfig()),
        (
            Backlog(3, 1000),
            1000.0,
            "interactive",
            HotConfig(Sla(ttft_p99_ms=500), AdmissionPolicy(shed_hopeless=False)),
        ),
    ],
    ids=["nobody ahead", "no evidence", "in time", "batch lane", "no target", "switched off"],
)
def test_nobody_is_called_hopeless_without_a_reason(
    queue: Backlog, rate: float | None, lane: Lane, config: HotConfig
) -> None:
    """A wrong refusal is an outage that we made ourselves."""
    assert refuse(queue, Arrival(lane, 100), config=config, rate=rate) is None


def test_the_rate_is_learned_from_steps_that_left_prompts_waiting() -> None:
    """A step that had little to do does not say what it could have done."""
    rate = PrefillRate()

    rate.learn([a_step(at=t / 10, wall_ms=100, prefill=1) for t in range(100)])
    assert rate.tokens_per_s is None
    steps = [a_step(at=t / 10, wall_ms=100, prefill=64, waiting_tokens=9) for t in range(100)]
    rate.learn(steps)

    assert rate.tokens_per_s == pytest.approx(640)


def test_prompts_that_are_found_in_the_cache_are_worked_off_without_being_computed() -> None:
    """Half of the tokens that wait are cached: the backlog shrinks twice as fast as it is computed.

    Whoever is turned away for a backlog that hardly costs anything is turned away for nothing.
    """
    rate = PrefillRate()
    steps = [a_step(at=t / 10, wall_ms=100, prefill=64, waiting_tokens=9) for t in range(100)]

    rate.learn(steps[:50], replace(an_engine_load(), prefix_queries=1000, prefix_hits=900))
    rate.learn(steps[50:], replace(an_engine_load(), prefix_queries=3000, prefix_hits=1900))

    assert rate.tokens_per_s == pytest.approx(1280)


def test_the_step_that_ends_a_backlog_counts() -> None:
    """A prompt waited a second for a row, and was then computed: 32 tokens in 1.2 s."""
    rate = PrefillRate()
    waits = [a_step(at=t / 5, wall_ms=200, waiting_tokens=32) for t in range(5)]

    rate.learn([*waits, a_step(at=1.2, wall_ms=200, prefill=32)])
    rate.learn([a_step(at=1.4, wall_ms=200, prefill=1)])

    assert rate.tokens_per_s == pytest.approx(32 / 1.2)


def test_the_rate_forgets_what_is_long_past() -> None:
    """Limits change, and the rate with them."""
    rate = PrefillRate()
    rate.learn([a_step(at=1, wall_ms=1000, prefill=10, waiting_tokens=9)])

    rate.learn([a_step(at=100, wall_ms=1000, prefill=500, waiting_tokens=9)])

    assert rate.tokens_per_s == pytest.approx(500)


PEOPLE_FIRST = Backlog(requests=1000, tokens=500_000, batch_requests=999, batch_tokens=499_900)


def test_a_batch_flood_makes_no_person_hopeless() -> None:
    """Interactive prompts are computed first: what the batch lane has waiting is not ahead."""
    config = HotConfig(HALF_A_SECOND.sla, admission=AdmissionPolicy(max_queued_requests=5000))

    assert refuse(PEOPLE_FIRST, Arrival("interactive", 100), config=config, rate=1000.0) is None


def test_the_batch_lane_is_held_to_targets_of_its_own() -> None:
    """Without them it waits as long as its deadline lets it."""
    own = HotConfig(Sla(ttft_p99_ms=500), batch_sla=Sla(ttft_p99_ms=60_000))

    lost = refuse(Backlog(3, 90_000), Arrival("batch", 100), config=own, rate=1000.0)
    fine = refuse(Backlog(3, 50_000), Arrival("batch", 100), config=own, rate=1000.0)

    assert lost is not None
    assert lost.reason == "hopeless"
    assert fine is None


@pytest.mark.parametrize("lane", ["interactive", "batch"])
def test_a_request_is_hopeless_beyond_its_own_deadline(lane: Lane) -> None:
    """Its client will not be there any more."""
    queue = Backlog(3, 1000)

    late = refuse(queue, Arrival(lane, 100, 1, 1.0), config=HotConfig(), rate=1000.0)
    in_time = refuse(queue, Arrival(lane, 100, 1, 2.0), config=HotConfig(), rate=1000.0)

    assert late is not None
    assert late.reason == "hopeless"
    assert in_time is None


def a_batch_ticket(
    admission: AdmissionControl, tokens: int, config: HotConfig, left: list[int]
) -> None:
    (ticket,) = admission.admit([tokens], lane="batch", config=config)

    def give_way(refusal: Refused) -> bool:
        assert refusal.reason == "displaced"
        left.append(tokens)
        return True

    ticket.party.give_way = give_way


def test_a_person_takes_the_places_of_the_batch_requests_that_came_last() -> None:
    """As many as it needs, and the bound holds."""
    admission = AdmissionControl()
    left: list[int] = []
    config = HotConfig(admission=AdmissionPolicy(max_queued_requests=16, reject_at=1.0))
    for tokens in range(16):
        a_batch_ticket(admission, tokens, config, left)

    admission.admit([5, 5], lane="interactive", config=config)

    assert left == [15, 14]
    assert admission.queue == Backlog(16, sum(range(14)) + 10, 14, sum(range(14)))


def test_a_batch_request_of_many_items_gives_all_its_places_at_once() -> None:
    """Without one of them it would be of no use to its client."""
    admission = AdmissionControl()
    left: list[int] = []
    for _ in range(98):
        a_batch_ticket(admission, 1, HUNDRED, left)
    many = admission.admit([7] * 2, lane="batch", config=HUNDRED)
    given: list[Refused] = []

    def give_way(refusal: Refused) -> bool:
        given.append(refusal)
        return True

    many[0].party.give_way = give_way

    admission.admit([1], lane="interactive", config=HUNDRED)

    assert len(given) == 1
    assert not left
    assert admission.queue == Backlog(99, 99, 98, 98)


def test_nobody_gives_its_place_in_vain() -> None:
    """A prompt that is longer than the cap never fits beside others."""
    config = HotConfig(admission=AdmissionPolicy(max_queued_tokens=100, reject_at=1.0))
    admission = AdmissionControl()
    left: list[int] = []
    admission.admit([10], lane="interactive", config=config)
    a_batch_ticket(admission, 10, config, left)

    with pytest.raises(Refused) as caught:
        admission.admit([101], lane="interactive", config=config)

    assert caught.value.reason == "queue_tokens"
    assert not left


def test_batch_requests_take_nobodys_place() -> None:
    """Not even that of an older one of their own lane."""
    admission = AdmissionControl()
    left: list[int] = []
    for _ in range(4):
        a_batch_ticket(admission, 10, FOUR, left)

    with pytest.raises(Refused):
        admission.admit([1], lane="batch", config=FOUR)

    assert not left


def test_who_waits_in_vain_is_found_and_leaves_the_others_better_off() -> None:
    """At 100 tokens a second the third comes too late; without it the fourth is in time."""
    admission = AdmissionControl()
    config = HotConfig(sla=Sla(ttft_p99_ms=5000))
    tickets = [
        admission.admit([n], lane="interactive", config=config)[0] for n in (100, 300, 900, 50)
    ]

    lost = hopeless(admission.waiting, config, 0.0, rate=100.0, computed=0)
    later = hopeless(admission.waiting, config, 4.9, rate=100.0, computed=400)

    assert lost == [tickets[2]]
    assert tickets[0] not in later
    assert tickets[1] not in later


def test_nobody_who_waits_is_refused_without_evidence_or_where_it_is_switched_off() -> None:
    """A forecast from nothing would be an outage that we made ourselves."""
    admission = AdmissionControl()
    config = HotConfig(sla=Sla(ttft_p99_ms=50))
    admission.admit([100, 900], lane="interactive", config=config)
    off = HotConfig(config.sla, admission=AdmissionPolicy(shed_hopeless=False))

    assert hopeless(admission.waiting, config, 9.0, rate=None, computed=0) == []
    assert hopeless(admission.waiting, off, 9.0, rate=100.0, computed=0) == []


def test_nobody_ahead_means_no_wait() -> None:
    """Whatever the rate."""
    assert seconds_to_first_token(tokens_ahead=0, own_tokens=9999, rate=1.0) == 0.0
