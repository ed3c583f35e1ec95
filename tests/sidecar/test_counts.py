"""Histograms, sketches, rings and records: plain numbers that add up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_sidecar.hot_config import HotConfig, Sla
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome, miss_reason
from paceline_sidecar.metrics.histogram import Histogram
from paceline_sidecar.metrics.ledger import Ledger
from paceline_sidecar.metrics.ring import Ring, Sequence
from paceline_sidecar.metrics.sketch import ALPHA, GapSketch

VALUES = st.lists(st.floats(min_value=0, max_value=20), max_size=50)
EDGES = st.lists(st.floats(min_value=0.1, max_value=15), max_size=3).map(tuple)


def cumulative(histogram: Histogram) -> dict[str, float]:
    return dict(histogram.cumulative())


@given(VALUES, VALUES, EDGES, EDGES)
def test_moving_edges_lose_no_count_and_no_bucket_falls(
    before: list[float], after: list[float], first: tuple[float, ...], second: tuple[float, ...]
) -> None:
    """A counter that falls would read as a restart."""
    histogram = Histogram((1.0, 5.0, 10.0))
    histogram.keep_edges(first)
    for value in before:
        histogram.observe(value)
    old = cumulative(histogram)

    histogram.keep_edges(second)
    for value in after:
        histogram.observe(value)
    new = cumulative(histogram)

    assert histogram.count == len(before) + len(after)
    assert list(new.values()) == sorted(new.values())
    assert all(new[edge] >= old[edge] for edge in old.keys() & new.keys())
    for edge in ("1.0", "5.0", "10.0"):
        assert new[edge] == sum(value <= float(edge) for value in (*before, *after))


def test_a_value_on_the_edge_is_within() -> None:
    """`le` is less or equal: a request at its target has met it."""
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)

    assert cumulative(histogram) == {"1.0": 1, "2.0": 1, "+Inf": 1}


@given(st.lists(st.floats(min_value=0.01, max_value=1e5), min_size=1, max_size=50))
def test_a_bin_of_the_sketch_holds_its_value(gaps: list[float]) -> None:
    """Bin i is (g^(i-1), g^i], so a quantile is off by alpha at most."""
    sketch = GapSketch("interactive")
    for gap in gaps:
        sketch.add(gap, now=12.0)

    (part,) = sketch.slices()
    base = (1 + ALPHA) / (1 - ALPHA)
    assert part.start_at == 10.0
    assert sum(part.bins.values()) == len(gaps)
    for index in part.bins:
        low, high = base ** (index - 1) * (1 - 1e-9), base**index * (1 + 1e-9)
        assert any(low < gap <= high for gap in gaps)


def test_slices_are_five_seconds_and_the_newest_stay() -> None:
    """Two minutes of them."""
    sketch = GapSketch("batch")
    for second in range(200):
        sketch.add(1.0, now=float(second))

    starts = [part.start_at for part in sketch.slices()]
    assert starts == [float(start) for start in range(80, 200, 5)]


def test_rings_share_their_numbers() -> None:
    """`since` means the same in all of them."""
    sequence = Sequence()
    letters: Ring[str] = Ring(2, sequence)
    numbers: Ring[int] = Ring(9, sequence)
    letters.add("a")
    numbers.add(1)
    letters.add("b")
    letters.add("c")

    assert [(one.seq, one.record) for one in letters.since(0)] == [(3, "b"), (4, "c")]
    assert [one.record for one in letters.since(3)] == ["c"]
    assert [one.seq for one in numbers.since(0)] == [2]
    assert sequence.last - len(letters.since(0)) - len(numbers.since(0)) == 1  # "a" is lost


def a_record(outcome: Outcome = "ok", **values: float) -> FinishedRequest:
    fields: dict[str, float] = {"ttft_ms": 100.0, "tpot_ms": 10.0, **values}
    return FinishedRequest(
        lane="interactive",
        arrived_at=1.0,
        finished_at=fields.get("finished_at", 2.0),
        outcome=outcome,
        ttft_ms=fields["ttft_ms"],
        tpot_ms=fields["tpot_ms"],
        slow_gaps=fields.get("slow_gaps", 0.0),
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (a_record(), None),
        (a_record(ttft_ms=500.0), None),
        (a_record(ttft_ms=501.0, tpot_ms=999.0), "ttft"),
        (a_record(tpot_ms=51.0), "tpot"),
        (a_record(slow_gaps=0.01), None),
        (a_record(slow_gaps=0.02), "itl"),
        (a_record(finished_at=3.1), "e2e"),
        (a_record("refused"), "refused"),
        (a_record("shed"), "shed"),
        (a_record("timeout"), "timeout"),
        (a_record("failed"), "failed"),
    ],
    ids=["met", "at target", "ttft", "tpot", "1% slow", "2% slow", "e2e", *"RSTF"],
)
def test_a_miss_has_one_reason(record: FinishedRequest, reason: str | None) -> None:
    """The first target that was missed, or how it ended."""
    sla = Sla(ttft_p99_ms=500, tpot_p99_ms=50, itl_p99_ms=80, e2e_p99_ms=2000)

    assert miss_reason(record, sla) == reason


def test_a_client_that_left_is_neither_met_nor_missed() -> None:
    """It was not the service that ended it."""
    ledger = Ledger()
    ledger.ended(a_record("cancelled"))

    counts = ledger.lanes["interactive"]
    assert (counts.met, counts.missed.total()) == (0, 0)
    assert counts.outcomes["cancelled"] == 1


def test_gaps_are_judged_by_the_target_that_holds() -> None:
    """Hot-changed like everything else."""
    ledger = Ledger()
    assert not ledger.gap("interactive", 90.0, now=1.0)

    ledger.follow(HotConfig(Sla(itl_p99_ms=80)))

    assert ledger.gap("interactive", 90.0, now=1.0)
    assert not math.isnan(ledger.lanes["interactive"].itl_s.total)


def test_a_copy_of_the_counts_stands_still() -> None:
    """A thread writes a scrape from it while requests go on."""
    ledger = Ledger()
    ledger.first_token("interactive", 0.2)
    ledger.gap("interactive", 20.0, now=1.0)
    ledger.gap("interactive", 20.0, now=1.0)
    ledger.refusals["queue_full"] += 1
    before = ledger.copy()

    ledger.first_token("interactive", 0.2)
    ledger.gap("interactive", 20.0, now=1.0)
    ledger.refusals["queue_full"] += 1
    ledger.vllm.size_to(512)

    for counts, times in ((before, 1), (ledger, 2)):
        assert counts.lanes["interactive"].ttft_s.count == times
        assert counts.lanes["interactive"].itl_s.count == times + 1
        assert counts.vllm.itl_s.count == times + 1
        assert counts.refusals["queue_full"] == times


def test_equal_gaps_are_counted_as_if_each_came_alone() -> None:
    """Of one step most gaps are equal, and are counted in one go."""
    ledger = Ledger()
    for gap_ms, now in ((20.0, 1.0), (20.0, 1.0), (5.0, 1.0), (20.0, 1.0), (20.0, 7.0)):
        ledger.gap("interactive", gap_ms, now=now)
    ledger.gap("batch", 20.0, now=7.0)

    lanes = ledger.lanes

    assert lanes["interactive"].itl_s.count == 5
    assert lanes["interactive"].itl_s.total == pytest.approx(0.085)
    assert [sum(one.bins.values()) for one in lanes["interactive"].gaps.slices()] == [4, 1]
    assert lanes["batch"].itl_s.count == 1
    assert ledger.vllm.itl_s.count == 6
