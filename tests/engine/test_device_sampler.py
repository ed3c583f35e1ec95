"""Sampling beside a GPU, by its kernels' reference: nothing waits, and all is done."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline_engine.core.request import Request
from paceline_engine.sampling.masks import MaskMaker
from paceline_engine.sampling.on_device import DeviceSampler
from paceline_engine.sampling.sampler import Sampler
from paceline_testing.draws import AskingSampler, parameters_of
from paceline_wire import Sampling

VOCAB = 400
EOS = 7

# On a GPU each of these ends in a copy to the host that is waited for.
_WAITS = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::bincount",
    "aten::repeat_interleave.Tensor",
}


class NoWaiting(TorchDispatchMode):
    """Fails at ops whose result the host must know, and at indices that are masks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's own has no annotations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        full = f"{name}.{func._schema.overload_name}"
        has_size = (kwargs or {}).get("output_size") is not None
        if name in _WAITS or (full in _WAITS and not has_size):
            raise AssertionError(f"{full} waits for the device")
        if name in {"aten::index", "aten::index_put", "aten::index_put_"}:
            masks = [each for each in args[1] if each is not None and each.dtype == torch.bool]
            if masks:
                raise AssertionError(f"{name} with a mask waits for the device")
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if all tensors lay on a device: whoever looks at one fails."""

    def looked(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("the host looked at a tensor of the device")

    with monkeypatch.context() as patch, NoWaiting():
        for name in ("tolist", "numpy", "item", "cpu", "__bool__", "__int__", "__float__"):
            patch.setattr(torch.Tensor, name, looked)
        yield


def _request(id_: str = "a", *, output: tuple[int, ...] = (4, 9, 4), **asked: Any) -> Request:
    prompt = [3, 9, 30]
    return Request(id_, [*prompt, *output], len(prompt), Sampling(**{"max_tokens": 99, **asked}))


def _logits(rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "seeded": {"seed": -5},
    "cut": {"top_k": 9, "top_p": 0.8, "min_p": 0.01},
    "penalties": {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.3,
    },
    "bias": {"logit_bias": {5: 3.0, 9: -100.0}},
    "least length": {"min_tokens": 9, "stop_token_ids": (8, 10**9)},
    "told": {"logprobs": 3},
}


class OnlyToken:
    """A constraint that one token fulfils."""

    def __init__(self, token: int) -> None:
        self._token = token

    def fill_bitmask(self, output_ids: Any, bitmask: Any) -> None:
        del output_ids  # whatever came before
        bitmask[self._token // 32] |= 1 << (self._token % 32)


def test_nothing_on_the_way_of_a_token_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the rows ask for, with a step in flight and without."""
    sampler = DeviceSampler([EOS])
    requests = [_request(name, **asked) for name, asked in ASKED.items()]
    requests += [_request("constrained")]
    requests[-1].constraint = OnlyToken(77)
    requests[-1].is_plain = False
    logits = _logits(len(requests))
    aheads = ((), (1,) * (len(requests) - 1) + (0,))
    given = [parameters_of(requests, ahead, b"salt") for ahead in aheads]

    chosen = []
    with nothing_waits(monkeypatch):
        for ahead, parameters in zip(aheads, given, strict=True):
            masks = MaskMaker().begin(requests, VOCAB)
            chosen += [
                sampler.choose(logits.clone(), requests, masks, ahead=ahead, parameters=parameters),
                sampler.choose_asked(
                    logits.clone(),
                    logits.argmax(dim=-1),
                    requests,
                    masks,
                    ahead=ahead,
                    parameters=parameters,
                ),
            ]

    for each in chosen:
        tokens = each.on_host()
        assert tokens[0] == int(logits[0].argmax())
        assert tokens[-1] == 77
        assert requests[-2].likelihood is not None
        assert requests[-2].likelihood.token_id == tokens[-2]


def test_only_rows_that_ask_are_chosen_again() -> None:
    """The others have drawn in the graph, and keep what they drew."""
    requests = [_request(name, **asked) for name, asked in ASKED.items()]
    parameters = parameters_of(requests, (), b"salt")
    logits = _logits(len(requests))
    drawn = torch.arange(100, 100 + len(requests))
    wanted = AskingSampler([EOS], b"salt").choose(logits.clone(), requests)
    wanted_ids, told = wanted.on_host(), requests[-1].likelihood

    seen = DeviceSampler([EOS]).choose_asked(
        logits.clone(), drawn.clone(), requests, None, ahead=(), parameters=parameters
    )

    asks = [name in {"penalties", "bias", "least length", "told"} for name in ASKED]
    assert sum(asks) == 4
    for row, is_asked in enumerate(asks):
        assert seen.tokens[row] == (wanted_ids if is_asked else drawn)[row]
    requests[-1].likelihood = None
    seen.on_host()
    assert requests[-1].likelihood == told is not None


def test_a_sampler_on_the_device_is_told_what_to_draw_by() -> None:
    """A book that keeps none of it would make every row greedy, and nobody would see why."""
    with pytest.raises(TypeError, match="must have the rows' parameters, got None"):
        DeviceSampler([EOS]).choose(_logits(1), [_request()])


def test_what_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler of a CPU looks at its tensors, and is caught."""
    with nothing_waits(monkeypatch), pytest.raises(AssertionError, match=r"wait|looked"):
        Sampler([EOS], b"").choose(_logits(1), [_request(top_p=0.5)])


@pytest.mark.parametrize("name", ["greedy", "penalties", "bias", "least length", "told"])
def test_both_samplers_agree_where_nothing_is_drawn(name: str) -> None:
    """What is asked of the scores is one thing; likelihoods are told alike."""
    told, tokens = [], []
    for sampler in (Sampler([EOS], b""), AskingSampler([EOS], b"")):
        requests = [_request("x", temperature=0.0)]
        requests += [_request(str(n), **{**ASKED[name], "temperature": 0.0}) for n in range(3)]
        logits = _logits(4)
        logits[:, [EOS, 8]] = 50.0
        tokens.append(sampler.choose(logits, requests).on_host())
        told.append([request.likelihood for request in requests])

    assert tokens[0] == tokens[1]
    assert told[0] == told[1]


def test_a_row_draws_the_same_alone_and_beside_others() -> None:
    """Also where the others ask for more than it does."""
    logits = _logits(len(ASKED))
    requests = [_request(name, **asked) for name, asked in ASKED.items()]
    sampler = AskingSampler([EOS], b"salt")

    together = sampler.choose(logits.clone(), requests).on_host()
    alone = [
        sampler.choose(logits[row : row + 1].clone(), [request]).on_host()[0]
        for row, request in enumerate(requests)
    ]

    assert together == alone
    assert AskingSampler([EOS], b"other").choose(logits.clone(), requests).on_host() != together


@pytest.mark.parametrize("kind", [Sampler, AskingSampler])
@pytest.mark.parametrize("arriving", [4, 200, 30], ids=["again", "new", "of the prompt"])
def test_a_token_on_its_way_is_penalised(kind: Any, arriving: int) -> None:
    """The step before has chosen it, and the host does not know it yet."""
    asked = {**ASKED["penalties"], "temperature": 0.0, "min_tokens": 4}
    sampler, knows = kind([EOS], b""), kind([EOS], b"")
    request, told = _request(**asked), _request(output=(4, 9, 4, arriving), **asked)
    forced = torch.full((1, VOCAB), -torch.inf)
    forced[0, arriving] = 0.0
    logits = _logits(1)
    logits[0, arriving] = logits.max() + 0.6  # what a penalty decides
    logits[0, EOS] = logits.max() + 9  # forbidden until the one on its way is there

    assert sampler.choose(forced, [request]).on_host() == [arriving]
    seen = sampler.choose(logits.clone(), [request], ahead=[1]).on_host()

    assert seen == knows.choose(logits.clone(), [told]).on_host() == [EOS]
    logits[0, EOS] = 0.0
    sampler.choose(forced, [request])
    seen = sampler.choose(logits.clone(), [request], ahead=[1]).on_host()
    assert seen == knows.choose(logits.clone(), [told]).on_host()
    assert seen != [arriving]
