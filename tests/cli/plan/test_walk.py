"""A walk serves requests as an engine would, on a clock that only steps move."""

import pytest

from paceline_cli.plan.walk import Pod, joined, quantile, walk
from paceline_cli.traffic.traces import TracedRequest
from paceline_tuner.forecast import Forecast
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import ModelFit


def a_pod(
    *, batch: int = 4, budget: int = 100, target_ms: float | None = None, kv_tokens: int = 10_000
) -> Pod:
    """A step takes 10 ms and 0.1 ms per token; no noise."""
    fit = ModelFit(
        theta=(10.0, 0.1, 0.0, 0.0, 0.0), prior=(0.0,) * 5, knee=256, correction=(),
        fast=1.0, q_r=1.0, samples=0, mape=0.0, valid=True,
    )  # fmt: skip
    return Pod(Forecast(fit), batch, budget, target_ms, min_prefill=16, kv_tokens=kv_tokens)


def test_a_lone_request_takes_its_prompt_and_its_tokens() -> None:
    """Prefill of 100 tokens in one step, then two steps of one token each."""
    walked = walk([TracedRequest(1.0, 100, 3)], a_pod())

    assert walked.ttft_ms == pytest.approx((20.0,))
    assert walked.tpot_ms == pytest.approx((10.1,))
    assert [count for _, count in walked.gaps] == [1, 1]
    assert [ms for ms, _ in walked.gaps] == pytest.approx([10.1, 10.1])


def test_a_prompt_longer_than_the_budget_takes_more_steps() -> None:
    """250 tokens at 100 a step: 20, 20 and 15 ms."""
    assert walk([TracedRequest(0.0, 250, 1)], a_pod()).ttft_ms == pytest.approx((55.0,))


def test_a_prompt_beside_a_decode_stretches_its_gaps_and_the_target_bounds_it() -> None:
    """What a token budget or a step target is for."""
    requests = [TracedRequest(0.0, 10, 50), TracedRequest(0.05, 400, 1)]

    free = walk(requests, a_pod(budget=1000))
    paced = walk(requests, a_pod(budget=1000, target_ms=15.0))

    assert free.itl(1.0) == pytest.approx(10 + 0.1 * 401)
    assert paced.itl(1.0) <= 15.0
    assert paced.ttft_ms[1] > free.ttft_ms[1]


def test_a_full_batch_lets_the_next_request_wait() -> None:
    """And memory does the same."""
    requests = [TracedRequest(0.0, 10, 11), TracedRequest(0.0, 10, 1)]

    together = walk(requests, a_pod(batch=2)).ttft_ms[1]

    assert walk(requests, a_pod(batch=1)).ttft_ms[1] > together + 100
    assert walk(requests, a_pod(batch=2, kv_tokens=25)).ttft_ms[1] > together + 100


def test_a_request_that_never_fits_does_not_stop_the_walk() -> None:
    """It is let in when nothing else runs."""
    walked = walk([TracedRequest(0.0, 90, 2)] * 3, a_pod(kv_tokens=50))

    assert len(walked.ttft_ms) == 3


def test_each_mean_belongs_to_the_first_token_beside_it() -> None:
    """The long answer ends last though it began first; both latencies are of one request."""
    requests = [TracedRequest(0.0, 10, 30), TracedRequest(0.02, 90, 2)]

    walked = walk(requests, a_pod())

    assert walked.ttft_ms[0] == pytest.approx(11.0)
    assert walked.tpot_ms[0] == pytest.approx(10.1, rel=0.2)
    assert walked.tpot_ms[1] == pytest.approx(10.2)


def test_attainment_is_the_lesser_of_requests_and_gaps() -> None:
    """As the tuner counts."""
    walked = walk([TracedRequest(0.0, 100, 3), TracedRequest(10.0, 300, 3)], a_pod())

    assert walked.attainment(SLA(ttft_p99_ms=30.0)) == 0.5
    assert walked.attainment(SLA(ttft_p99_ms=100.0, itl_p99_ms=5.0)) == 0.0
    assert walked.attainment(SLA()) == 1.0


def test_pods_are_counted_together() -> None:
    """A p99 of two pods is that of all their requests."""
    one = walk([TracedRequest(0.0, 10, 2)], a_pod())

    assert len(joined([one, one]).ttft_ms) == 2
    assert quantile([(1.0, 99), (5.0, 1)], 0.99) == 1.0
    assert quantile([(1.0, 98), (5.0, 2)], 0.99) == 5.0
