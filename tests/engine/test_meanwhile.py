"""Work during a block: its failure is told to the block, and the block ends after it."""

from collections.abc import Callable
from threading import Event

import pytest

from paceline_engine.loading.meanwhile import meanwhile
from paceline_testing.waiting import wait_until


class BrokenError(Exception):
    """Raised by the work."""


def _break() -> None:
    raise BrokenError


def _is_told(check: Callable[[], None]) -> bool:
    try:
        check()
    except BrokenError:
        return True
    return False


def test_the_block_ends_after_the_work() -> None:
    """Whoever is behind it finds the work done."""
    may_end, has_ended = Event(), Event()

    def work() -> None:
        may_end.wait()
        has_ended.set()

    with meanwhile(work) as check:
        check()  # nothing is wrong so far
        assert not has_ended.is_set()
        may_end.set()

    assert has_ended.is_set()


def test_a_failure_ends_a_long_block() -> None:
    """Weights are not read for minutes for a tokenizer that cannot be."""

    def long_block() -> None:
        with meanwhile(_break) as check:
            wait_until(lambda: _is_told(check))
            check()
            raise AssertionError("the block went on")

    with pytest.raises(BrokenError):
        long_block()


def test_a_failure_ends_a_short_block_too() -> None:
    """The end of the block raises it, where nobody has checked before."""
    with pytest.raises(BrokenError), meanwhile(_break):
        pass


def test_the_failure_of_the_block_itself_is_raised() -> None:
    """It is what came first for whoever looks."""
    with pytest.raises(ZeroDivisionError), meanwhile(lambda: None):
        raise ZeroDivisionError
