"""Sampling beside a GPU, by its kernels' reference: nothing waits, and all is done."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline_engine.core.request import Request
from paceline_engine.sampling.cpu_sampler import CpuSampler
from paceline_engine.sampling.device_sampler import DeviceSampler
from paceline_engine.sampling.masks import MaskMaker
from paceline_engine.sampling.sampler import Sampler
from paceline_testing.sampling_reference import AskingSampler, parameters_of
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


def _tokens(
    sampler: Sampler, logits: torch.Tensor, requests: list[Request], *, ahead: Sequence[int] = ()
) -> list[int]:
    return sampler.sample(logits, requests, ahead=ahead).on_host().token_ids


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
                sampler.sample(logits.clone(), requests, masks, ahead=ahead, parameters=parameters),
                sampler.resample(
                    logits.clone(),
                    logits.argmax(dim=-1),
                    requests,
                    masks,
                    ahead=ahead,
                    parameters=parameters,
                ),
            ]

    for each in chosen:
        tokens, logprobs = each.on_host()
        assert tokens[0] == int(logits[0].argmax())
        assert tokens[-1] == 77
        assert logprobs[requests[-2].id].token_id == tokens[-2]


def test_only_rows_that_ask_are_chosen_again() -> None:
    """The others have drawn in the graph, and keep what they drew."""
    requests = [_request(name, **asked) for name, asked in ASKED.items()]
    parameters = parameters_of(requests, (), b"salt")
    logits = _logits(len(requests))
    drawn = torch.arange(100, 100 + len(requests))
    wanted = AskingSampler([EOS], b"salt").sample(logits.clone(), requests)
    wanted_ids, logprobs = wanted.on_host()

    seen = DeviceSampler([EOS]).resample(
        logits.clone(), drawn.clone(), requests, None, ahead=(), parameters=parameters
    )

    asks = [name in {"penalties", "bias", "least length", "told"} for name in ASKED]
    assert sum(asks) == 4
    for row, is_asked in enumerate(asks):
        assert seen.token_ids[row] == (wanted_ids if is_asked else drawn)[row]
    assert seen.on_host().logprobs == logprobs
    assert list(logprobs) == [requests[-1].id]


def test_a_sampler_on_the_device_is_told_what_to_draw_by() -> None:
    """An input batch that keeps none of it would make every row greedy, unseen."""
    with pytest.raises(TypeError, match="must have the rows' parameters, got None"):
        DeviceSampler([EOS]).sample(_logits(1), [_request()])


def test_what_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler of a CPU looks at its tensors, and is caught."""
    with nothing_waits(monkeypatch), pytest.raises(AssertionError, match=r"wait|looked"):
        CpuSampler([EOS], b"").sample(_logits(1), [_request(top_p=0.5)])


@pytest.mark.parametrize("name", ["greedy", "penalties", "bias", "least length", "told"])
def test_both_samplers_agree_where_nothing_is_drawn(name: str) -> None:
    """What is asked of the scores is one thing; logprobs are given alike."""
    seen = []
    for sampler in (CpuSampler([EOS], b""), AskingSampler([EOS], b"")):
        requests = [_request("x", temperature=0.0)]
        requests += [_request(str(n), **{**ASKED[name], "temperature": 0.0}) for n in range(3)]
        logits = _logits(4)
        logits[:, [EOS, 8]] = 50.0
        seen.append(sampler.sample(logits, requests).on_host())

    assert seen[0] == seen[1]


def test_a_row_draws_the_same_alone_and_beside_others() -> None:
    """Also where the others ask for more than it does."""
    logits = _logits(len(ASKED))
    requests = [_request(name, **asked) for name, asked in ASKED.items()]
    sampler = AskingSampler([EOS], b"salt")

    together = _tokens(sampler, logits.clone(), requests)
    alone = [
        _tokens(sampler, logits[row : row + 1].clone(), [request])[0]
        for row, request in enumerate(requests)
    ]

    assert together == alone
    assert _tokens(AskingSampler([EOS], b"other"), logits.clone(), requests) != together


@pytest.mark.parametrize("kind", [CpuSampler, AskingSampler])
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

    assert _tokens(sampler, forced, [request]) == [arriving]
    seen = _tokens(sampler, logits.clone(), [request], ahead=[1])

    assert seen == _tokens(knows, logits.clone(), [told]) == [EOS]
    logits[0, EOS] = 0.0
    sampler.sample(forced, [request])
    seen = _tokens(sampler, logits.clone(), [request], ahead=[1])
    assert seen == _tokens(knows, logits.clone(), [told])
    assert seen != [arriving]
