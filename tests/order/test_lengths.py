"""The model of output lengths that the orders were tried with."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from order.lengths import Known, LengthModel, Lengths

CHAT, CODE = Known(caller="chat", prompt_tokens=900), Known(caller="code", prompt_tokens=900)


def predicted(model: LengthModel, known: Known) -> Lengths:
    lengths = model.predict(known)
    assert lengths is not None
    return lengths


def test_it_says_nothing_before_a_request_has_ended() -> None:
    """Nobody is put behind others on a guess."""
    assert LengthModel().predict(CHAT) is None


def test_callers_are_told_apart_and_a_new_one_is_like_all() -> None:
    """By what each has got; where nothing is known of a caller, by everybody."""
    model, chance = LengthModel(), random.Random(1)
    for _ in range(200):
        model.learn(CHAT, round(chance.lognormvariate(6.0, 0.2)))
        model.learn(CODE, round(chance.lognormvariate(2.5, 0.2)))

    assert predicted(model, CHAT).quantile(0.5) == pytest.approx(403, rel=0.2)
    assert predicted(model, CODE).quantile(0.5) == pytest.approx(12, rel=0.2)
    assert 12 < predicted(model, Known(caller="new")).mean < 403


def test_what_has_changed_is_learned_anew() -> None:
    """A caller whose answers become ten times as long is believed after some hundred of them."""
    model = LengthModel()
    for tokens in (20, 200):
        for _ in range(1000):
            model.learn(CHAT, tokens)

    assert predicted(model, CHAT).quantile(0.5) == pytest.approx(200, rel=0.45)


@settings(deadline=None)
@given(
    outputs=st.lists(st.integers(1, 10**6), min_size=1, max_size=50),
    max_tokens=st.integers(1, 10**6),
    low=st.floats(0.01, 0.99),
    high=st.floats(0.01, 0.99),
)
def test_quantiles_rise_and_stay_below_max_tokens(
    outputs: list[int], max_tokens: int, low: float, high: float
) -> None:
    """Whatever was learned."""
    model, known = LengthModel(), Known(max_tokens=max_tokens)
    for tokens in outputs:
        model.learn(known, tokens)

    lengths = predicted(model, known)

    low, high = sorted((low, high))
    rounding = 1 + 1e-9
    assert 0 < lengths.quantile(low) <= lengths.quantile(high) * rounding
    assert lengths.quantile(high) <= max_tokens
    assert lengths.mean <= max_tokens * rounding
