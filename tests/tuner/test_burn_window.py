"""A minute and five minutes of one load must agree before anything is said of it."""

from paceline_testing.telemetry import a_fit, a_limits, a_request
from paceline_tuner.burn_window import BurnWindow
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import EngineInfo, Load, RequestRecord
from paceline_tuner.window import Evidence

PERIOD_S = 5.0
TARGETS = SLA(ttft_p99_ms=1000.0, itl_p99_ms=50.0)
OBJECTIVE = TARGETS.objective


class Clients:
    """Twenty requests end in each period; some of them are late."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.seq = 0
        self.ended: list[RequestRecord] = []

    def period(self, late: int = 0, **fields: object) -> Evidence:
        """Let one decision period pass."""
        for index in range(20):
            self.seq += 1
            at = self.now + PERIOD_S * (index + 1) / 20
            ttft_ms = 2000.0 if index < late else 400.0
            self.ended.append(a_request(self.seq, at, ttft_ms=ttft_ms, **fields))
        self.now += PERIOD_S
        self.ended = [record for record in self.ended if record.finished_at > self.now - 60]
        return Evidence(
            now=self.now,
            instance="a",
            ready=True,
            limits=a_limits(),
            load=Load(running=8, waiting=0, waiting_tokens=0),
            model=a_fit(),
            info=EngineInfo(),
            window_s=60.0,
            steps=(),
            requests=tuple(self.ended),
            slices=(),
        )


def lived(clients: Clients, periods: int, late: int, burn: BurnWindow) -> BurnWindow:
    for _ in range(periods):
        burn = burn.add(TARGETS, clients.period(late))
    return burn


def test_a_bad_minute_in_a_good_spell_burns_and_spends_nothing() -> None:
    """Twelve late of 240, after four minutes without one."""
    clients = Clients()
    burn = lived(clients, 48, 0, BurnWindow())

    burn = lived(clients, 12, 1, burn)

    assert burn.is_burning(OBJECTIVE, clients.now)
    assert not burn.is_spent(OBJECTIVE)
    assert not burn.is_lost(OBJECTIVE, clients.now)


def test_what_came_before_the_change_is_of_another_spell() -> None:
    """The same bad minute of a load that has just begun is all that is known of it."""
    clients = Clients()
    lived(clients, 48, 0, BurnWindow())
    burn = BurnWindow(since=clients.now)

    burn = lived(clients, 6, 1, burn)

    assert burn.is_burning(OBJECTIVE, clients.now)
    assert burn.is_spent(OBJECTIVE)
    assert sum(burn.requests) < 6 * 20, "those that arrived before"


def test_five_minutes_of_misses_are_lost_and_not_before() -> None:
    """A load in bursts leaves good minutes between the bad ones."""
    clients = Clients()
    burn = lived(clients, 12, 4, BurnWindow())
    early = burn.is_lost(OBJECTIVE, clients.now)

    for _ in range(4):
        burn = lived(clients, 8, 0, burn)
        burn = lived(clients, 4, 4, burn)

    assert not early
    assert burn.is_lost(OBJECTIVE, clients.now)


def test_an_old_period_is_forgotten_and_no_request_counts_twice() -> None:
    """Five minutes are sixty periods of twenty."""
    clients = Clients()

    burn = lived(clients, 100, 1, BurnWindow())

    assert sum(burn.requests) == 60 * 20
    assert sum(burn.misses) == 60


def test_too_few_requests_tell_nothing() -> None:
    """Neither that the SLA is met nor that it is not."""
    burn = BurnWindow(since=999.0)

    assert not burn.is_burning(OBJECTIVE, 1000.0)
    assert not burn.is_met(OBJECTIVE, 1000.0)
    assert not burn.is_spent(OBJECTIVE)


def test_one_stalled_step_is_not_a_minute_of_missed_requests() -> None:
    """All that ran see the same long gap; gaps are counted by themselves."""
    clients = Clients()
    burn = BurnWindow()

    for _ in range(12):
        burn = burn.add(TARGETS, clients.period(itl_max_ms=400.0))

    assert not burn.is_burning(OBJECTIVE, clients.now)


def test_refused_requests_are_missed_and_those_that_left_are_not() -> None:
    """Who is shed was offered."""
    refused, left = (
        BurnWindow().add(TARGETS, Clients().period(outcome=outcome, tpot_ms=None))
        for outcome in ("shed", "cancelled")
    )

    assert refused.is_burning(OBJECTIVE, 1005.0)
    assert left.is_met(OBJECTIVE, 1005.0)
