"""Writes come at a bounded pace, what a spec asks for first, and only while this replica leads."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.errors import NotLeadingError
from paceline_operator.write_permits import Allowance, WritePermits


def _lead() -> None:
    """Hold the Lease."""


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=300), st.floats(1.0, 500.0))
def test_no_window_has_more_than_its_pace_and_one_burst(
    gaps: list[float], per_second: float
) -> None:
    """However the questions come."""
    allowance, now = Allowance(per_second), 0.0
    granted = []
    for gap in gaps:
        now += gap
        if allowance.take(now) == 0.0:
            granted.append(now)
    burst = max(1.0, per_second / 2)

    for first, began in enumerate(granted):
        for last in range(first, len(granted)):
            most = burst + (granted[last] - began) * per_second + 1e-6
            assert last - first + 1 <= most + 1


@settings(deadline=None)
@given(st.floats(1.0, 500.0), st.integers(1, 50))
def test_who_waits_as_long_as_told_gets_it(per_second: float, asked: int) -> None:
    """No turn is lost."""
    allowance, now = Allowance(per_second), 0.0
    for _ in range(asked + int(per_second)):
        while (missing_s := allowance.take(now)) > 0:
            now += missing_s + 1e-9

    assert now <= (asked + int(per_second)) / per_second


class Gate(Allowance):
    """Gives nothing until it is opened."""

    is_open = False

    def take(self, now: float) -> float:  # noqa: ARG002 - time does not matter
        """Give one, or ask to come back in a moment."""
        return 0.0 if self.is_open else 0.001


def _gated(check: Callable[[], None] = _lead) -> tuple[WritePermits, Gate]:
    permits, gate = WritePermits(check, 1.0), Gate(1.0)
    permits._allowance = gate
    return permits, gate


async def test_what_a_spec_asks_for_goes_before_what_is_only_told() -> None:
    """Whoever came first."""
    permits, gate = _gated()
    order: list[str] = []

    async def ask(name: str, turn: Callable[[], Awaitable[None]]) -> None:
        await turn()
        order.append(name)

    asked = [
        asyncio.create_task(ask(name, turn))
        for name, turn in (
            ("r1", permits.for_report),
            ("c1", permits.for_change),
            ("r2", permits.for_report),
            ("c2", permits.for_change),
        )
    ]
    await asyncio.sleep(0)
    gate.is_open = True
    await asyncio.gather(*asked)

    assert order == ["c1", "c2", "r1", "r2"]


async def test_who_gives_up_takes_no_turn() -> None:
    """A worker that is stopped."""
    permits, gate = _gated()
    gone = asyncio.create_task(permits.for_change())
    stays = asyncio.create_task(permits.for_change())
    await asyncio.sleep(0)
    gone.cancel()
    gate.is_open = True

    await stays

    assert gone.cancelled()


async def test_a_lease_lost_while_waiting_stops_the_write() -> None:
    """The fence is behind the wait."""
    leads = True

    def check() -> None:
        if not leads:
            raise NotLeadingError("gone")

    permits, gate = _gated(check)
    waiting = asyncio.create_task(permits.for_change())
    await asyncio.sleep(0)
    leads = False
    gate.is_open = True

    with pytest.raises(NotLeadingError):
        await waiting
