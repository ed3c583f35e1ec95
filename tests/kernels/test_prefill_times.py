"""What `make gpu` shows of torch's SDPA beside our prefill attention."""

from collections.abc import Callable, Iterator

import pytest
from torch import Tensor

import kernel_cases as cases
from gpu_suite import names
from gpu_suite.machine import DeviceLostError, Machine
from gpu_suite.prefill_times import by_sdpa
from gpu_suite.record import Absent, Broken, Figure, Found, Part, Record
from gpu_suite.targets import TARGETS, Target, judged
from paceline_engine.attention.prefill.prompts import PrefillAttention
from paceline_engine.attention.prefill.sdpa import NoFastAttentionError, sdpa_prefill
from paceline_testing.prefill import PrefillDouble

DRY = Machine(is_dry=True)
LAYER = cases.Layer(cases.Model("dry", 48, 80, 4, 2, 16, 300), DRY.dtype, DRY.device)
ALL = [names.prefill_by_sdpa(label, "dry") for label in ("2k", "8k", "2k of 8k")]


def timed(name: str, make: Callable[[cases.Layer], cases.Case]) -> Iterator[Found]:
    """Run it, as a stopwatch would."""
    case = make(LAYER)
    assert case.run() is not None
    yield Figure(name, case.num_flops, "flop")


def found(sdpa: PrefillAttention, machine: Machine = DRY, time_it: object = timed) -> list[Found]:
    return list(by_sdpa("dry", LAYER, machine, time_it, sdpa))  # type: ignore[arg-type] # each is one


def raising(error: Exception) -> PrefillAttention:
    def raises(_out: Tensor) -> Tensor:
        raise error

    return PrefillDouble(spoil=raises)


def test_whole_prompts_and_later_chunks_are_timed() -> None:
    """Torch's knows no block tables: what a later chunk sees is gathered, and that is timed too."""
    seen = found(sdpa_prefill)

    assert [one.name for one in seen] == ALL
    assert all(isinstance(one, Figure) for one in seen)


def test_sdpa_that_refuses_or_is_wrong_is_said_to_be() -> None:
    """The engine would leave it out too: nothing of ours is broken."""
    refused = found(raising(NoFastAttentionError("torch has no fast attention for such heads")))
    assert refused == [Absent(ALL[0], "torch has no fast attention for such heads")]
    (raised,) = found(raising(ValueError("what a package")))
    assert isinstance(raised, Absent)
    assert "it raised ValueError: what a package" in raised.why
    (wrong,) = found(PrefillDouble(spoil=lambda out: out * 1.2))
    assert isinstance(wrong, Absent)
    assert "a row differs from our kernel's" in wrong.why


def test_sdpa_that_float64_finds_wrong_is_no_fault_of_ours() -> None:
    """It passed the trial, and is wrong at 8k."""

    def broken(name: str, _make: object) -> Iterator[Found]:
        yield Broken(name, "differs from float64")

    assert [type(one) for one in found(sdpa_prefill, time_it=broken)] == [Absent] * 3


def test_what_an_earlier_try_has_is_not_tried_again() -> None:
    """One that took the GPU with it would do so again."""
    assert found(sdpa_prefill, Machine(is_dry=True, passed=frozenset(ALL))) == []
    beyond = Machine(is_dry=True, passed=frozenset(ALL[:1]))
    assert [one.name for one in found(sdpa_prefill, beyond)] == ALL[1:]


def test_sdpa_that_loses_the_gpu_is_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next process passes it by."""

    def loses(_name: str, _make: object) -> Iterator[Found]:
        raise ValueError("illegal access")
        yield  # as what times does

    def is_lost(_machine: Machine, error: Exception) -> None:
        raise DeviceLostError(str(error))

    monkeypatch.setattr(Machine, "require_alive", is_lost)
    tried = by_sdpa("dry", LAYER, DRY, loses)

    assert next(tried) == Absent(ALL[0], "ValueError: illegal access")
    with pytest.raises(DeviceLostError):
        next(tried)


def test_the_faster_attention_is_judged() -> None:
    """Whoever serves fastest is who serves: the target is for prompts, not for our kernel."""
    (target,) = (one for one in TARGETS if one.name == names.PREFILL_8K)
    ours, theirs = names.prefill("8k"), names.prefill_by_sdpa("8k")
    figures = (Figure(ours, 300, "TFLOP/s"), Figure(theirs, 500, "TFLOP/s"))

    def verdict(*figures: Figure) -> str:
        record = Record({"kernels": Part("kernels", {}, 1.0, figures)})
        return next(one.verdict for one in judged(record) if one.target == target)

    assert verdict(*figures) == "met"
    assert verdict(figures[0]) == "MISSED"
    assert verdict() == "not run"


def test_the_best_of_a_time_is_the_least() -> None:
    target = Target("step", 2.0, "ms", at_most=True, best_of=("a", "b"))
    part = Part("engine", {}, 1.0, (Figure("a", 3, "ms"), Figure("b", 1, "ms")))

    assert target.value_in(Record({"engine": part})) == 1
