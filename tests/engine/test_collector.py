"""The garbage collector stays out of the steps' way, and is given back."""

import gc
from collections.abc import Iterator

import pytest

from paceline_engine.process.collector import QuietCollector, nothing_collected


def test_imports_are_not_collected_and_stay() -> None:
    """The collector looks at none of their objects again."""
    frozen = gc.get_freeze_count()
    with nothing_collected():
        assert not gc.isenabled()

    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    gc.unfreeze()


@pytest.fixture
def collector() -> Iterator[QuietCollector]:
    """Take over the collector for one test."""
    taken = QuietCollector()
    yield taken
    taken.close()


def test_what_lives_since_start_is_frozen(collector: QuietCollector) -> None:
    """Weights and modules are never walked again."""
    assert gc.get_freeze_count() > 0
    assert collector.pause_ms == 0.0


def test_the_whole_heap_is_collected_when_idle_after_work(collector: QuietCollector) -> None:
    """And only then: an engine that idles all night collects once."""
    collector.idle(num_steps=0)
    generations = gc.get_stats()[2]["collections"]

    collector.idle(num_steps=3)
    collector.idle(num_steps=3)

    assert gc.get_stats()[2]["collections"] == generations + 1


def test_pauses_between_steps_are_measured(collector: QuietCollector) -> None:
    """The tuner must be able to tell a pause from a slow step."""
    gc.collect(0)

    assert collector.pause_ms > 0.0


def test_a_pause_that_no_step_waited_for_is_not_counted(collector: QuietCollector) -> None:
    """An idle engine's collection delays nobody."""
    before = collector.pause_ms
    collector.idle(num_steps=1)

    assert collector.pause_ms == before


def test_the_collector_is_given_back() -> None:
    """Tests and tools that embed an engine keep their own settings."""
    thresholds, callbacks = gc.get_threshold(), len(gc.callbacks)

    QuietCollector().close()

    assert gc.get_threshold() == thresholds
    assert len(gc.callbacks) == callbacks
    assert gc.get_freeze_count() == 0
