"""Drafts are computed only where the step model says that they pay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core.request import Request
from paceline_engine.drafting.acceptance import verify
from paceline_engine.drafting.ngram import NgramProposer
from paceline_engine.drafting.speculation import Speculation
from paceline_engine.pacing.pacer import NoPacer
from paceline_wire import Sampling, StepFeatures
from paceline_wire.limits import Lane

REPETITIVE = [1, 2, 3, 4, 5, 6] * 20


class PricedPacer(NoPacer):
    """A step takes `fixed_ms` and so much for each token."""

    def __init__(self, *, fixed_ms: float, token_ms: float) -> None:
        self._fixed_ms = fixed_ms
        self._token_ms = token_ms

    def predict_ms(self, step: StepFeatures) -> float:
        return self._fixed_ms + self._token_ms * step.tokens


IDLE_GPU = PricedPacer(fixed_ms=10.0, token_ms=0.01)
BUSY_CPU = PricedPacer(fixed_ms=1.0, token_ms=10.0)


def a_request(
    id_: str = "a",
    *,
    lane: Lane = "interactive",
    max_tokens: int = 100,
) -> Request:
    known = list(REPETITIVE)
    request = Request(
        id=id_,
        token_ids=known,
        num_prompt_tokens=len(known),
        sampling=Sampling(max_tokens=max_tokens),
        lane=lane,
    )
    request.num_computed = len(known) - 1
    return request


def a_speculation(max_tokens: int = 4) -> Speculation:
    return Speculation(max_tokens=max_tokens, max_model_len=2048, proposer=NgramProposer())


def drafts(
    speculation: Speculation, *requests: Request, pacer: NoPacer = IDLE_GPU, room: int = 1000
) -> dict[str, tuple[int, ...]]:
    context = sum(len(request.token_ids) for request in requests)
    asks = speculation.plan(requests, pacer, context=context, room=room)
    return dict(speculation.propose(asks).drafts) if asks else {}


def test_where_tokens_are_cheap_a_draft_is_tried() -> None:
    """As long as wanted."""
    assert drafts(a_speculation(), a_request()) == {"a": (1, 2, 3, 4)}


def test_where_tokens_are_dear_none_is() -> None:
    """A step bound by arithmetic makes fewer tokens a second with drafts."""
    assert drafts(a_speculation(), a_request(), pacer=BUSY_CPU) == {}


def test_a_large_batch_leaves_no_room_for_drafts() -> None:
    """The same model, the same text: what pays alone does not pay among many."""
    pacer = PricedPacer(fixed_ms=10.0, token_ms=1.0)
    many = [a_request(str(index)) for index in range(64)]

    assert drafts(a_speculation(), many[0], pacer=pacer)
    assert not drafts(a_speculation(), *many, pacer=pacer)


def test_drafts_that_fail_stop_and_are_tried_again_later() -> None:
    """Text changes: nothing is given up for ever."""
    speculation, request = a_speculation(), a_request()
    pacer = PricedPacer(fixed_ms=10.0, token_ms=1.0)
    for _ in range(200):
        speculation.verified(request, drafted=4, accepted=0)

    assert not drafts(speculation, request, pacer=pacer)
    waited = next(step for step in range(5000) if drafts(speculation, request, pacer=pacer))
    assert waited > 100


def test_lanes_learn_apart() -> None:
    """Extraction in batch must not switch off what pays in chat."""
    speculation = a_speculation()
    for _ in range(100):
        speculation.verified(a_request("b", lane="batch"), drafted=4, accepted=0)

    pacer = PricedPacer(fixed_ms=10.0, token_ms=1.0)
    assert drafts(speculation, a_request("c"), pacer=pacer)
    assert not drafts(speculation, a_request("d", lane="batch"), pacer=pacer)


def test_without_a_step_model_every_draft_is_tried() -> None:
    """It has no price to refuse by."""
    assert drafts(a_speculation(), a_request(), pacer=NoPacer())


def test_who_adjusts_scores_gets_no_draft() -> None:
    """Penalties and log-probabilities depend on the tokens before, one by one."""
    penalised = Request(
        id="p",
        token_ids=list(REPETITIVE),
        num_prompt_tokens=10,
        sampling=Sampling(max_tokens=500, frequency_penalty=0.5),
    )

    assert drafts(a_speculation(), penalised) == {}


def test_who_only_cuts_what_it_draws_from_gets_drafts() -> None:
    """By top-k, top-p or min-p alike: a draw needs nothing of the tokens before."""
    cut = Request(
        id="c",
        token_ids=list(REPETITIVE),
        num_prompt_tokens=10,
        sampling=Sampling(max_tokens=500, top_k=5, top_p=0.9, min_p=0.1),
    )

    assert drafts(a_speculation(), cut)


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=6),
    st.integers(0, 30),
    st.integers(1, 16),
)
def test_drafts_keep_within_the_step_and_the_request(
    max_tokens: list[int], room: int, longest: int
) -> None:
    """Never past `max_tokens`, never past the step's tokens."""
    requests = [a_request(str(index), max_tokens=count) for index, count in enumerate(max_tokens)]

    found = drafts(a_speculation(longest), *requests, pacer=NoPacer(), room=room)

    assert sum(map(len, found.values())) <= room
    for request in requests:
        draft = found.get(request.id, ())
        assert len(draft) <= min(longest, request.sampling.max_tokens - 1)


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [((1, 2, 3, 9), (1, 2, 3, 9)), ((1, 2, 7, 9), (1, 2, 7)), ((5, 2, 3, 9), (5,))],
    ids=["all right", "some right", "none right"],
)
def test_what_the_model_chose_is_kept(chosen: tuple[int, ...], kept: tuple[int, ...]) -> None:
    """Up to the first wrong draft token, and the model's own token in its place."""
    assert verify((1, 2, 3), chosen) == kept
