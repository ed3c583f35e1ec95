"""What pods give a second, and what a million of their tokens costs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_testing.telemetry import a_request, a_telemetry
from paceline_tuner.service_report import Throughput
from paceline_tuner.telemetry import Load, Telemetry
from paceline_tuner.throughput import throughput, together, token_cost
from paceline_tuner.window import Window


def _answer(now: float, output: int, prompt: int, instance: str = "a") -> Telemetry:
    load = Load(running=1, waiting=0, waiting_tokens=0, output_tokens=output, prefix_queries=prompt)
    return a_telemetry(
        now, load=load, instance=instance, requests=(a_request(int(now), now - 1.0),)
    )


def _measured(*answers: Telemetry) -> Throughput | None:
    window = Window()
    for answer in answers:
        window.add(answer)
    evidence = window.evidence(60.0)
    assert evidence is not None
    return throughput(evidence)


def test_tokens_are_counted_by_the_engine_and_requests_by_their_ends() -> None:
    """Counters are exact, drafts and running requests included."""
    found = _measured(_answer(100.0, 500, 1000), _answer(110.0, 900, 1200))

    assert found is not None
    assert found == Throughput(output_tps=40.0, prompt_tps=20.0, finished_rps=0.0333)
    assert found.total_tps == 60.0


def test_one_answer_gives_no_rate_and_neither_does_the_first_of_a_new_engine() -> None:
    """A counter since the start says nothing of the last minute."""
    assert _measured(_answer(100.0, 500, 0)) is None
    assert _measured(_answer(100.0, 500, 0), _answer(110.0, 5, 0, instance="b")) is None


def test_only_the_window_counts() -> None:
    """What was given an hour ago is forgotten, once enough newer answers have come."""
    answers = [_answer(100.0, 0, 0), *(_answer(100.0 + 10 * n, 9000, 0) for n in range(1, 9))]

    found = _measured(*answers)

    assert found is not None
    assert found.output_tps == 0.0


def test_pods_add_up_and_those_that_are_silent_cost_too() -> None:
    """Half of the pods give all tokens: each costs twice as much."""
    pod = Throughput(output_tps=100.0, prompt_tps=300.0, finished_rps=1.0)

    given_ = together([pod, None, pod])
    cost = token_cost(given_, price_per_hour=3.6, num_pods=4)

    assert given_ == Throughput(200.0, 600.0, 2.0)
    assert cost is not None
    assert cost.per_million_output == pytest.approx(20.0)
    assert cost.per_million_total == pytest.approx(5.0)


def test_without_a_price_or_a_token_nothing_is_said() -> None:
    """Not infinity, and not 0."""
    idle = Throughput(0.0, 0.0, 0.0)

    assert together([None]) is None
    assert token_cost(idle, price_per_hour=1.0) is None
    assert token_cost(replace(idle, output_tps=1.0), price_per_hour=None) is None
    assert token_cost(None, price_per_hour=1.0) is None


@given(st.floats(0.1, 1e5), st.floats(0.0, 1e6), st.floats(0.01, 1e3), st.integers(1, 100))
def test_a_total_token_never_costs_more_than_an_output_token(
    output: float, prompt: float, price: float, pods: int
) -> None:
    """And an hour of tokens at that cost is the price of the pods."""
    cost = token_cost(Throughput(output, prompt, 1.0), price_per_hour=price, num_pods=pods)

    assert cost is not None
    assert cost.per_million_total <= cost.per_million_output
    assert cost.per_million_output * output * 3600 / 1e6 == pytest.approx(price * pods)
