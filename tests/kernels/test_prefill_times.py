"""What `make gpu` shows of prefill back ends that are not ours."""

from collections.abc import Callable, Iterator

import pytest

import kernel_cases as cases
from gpu_suite import names
from gpu_suite.machine import DeviceLostError, Machine
from gpu_suite.prefill_times import PROMPTS, by_others
from gpu_suite.record import Absent, Broken, Figure, Found, Part, Record
from gpu_suite.targets import TARGETS, Target, judged
from paceline_engine.attention.prefill.attention import PrefillAttention, RefusedError
from paceline_engine.attention.prefill.offers import offers
from paceline_testing.prefill import PrefillDouble

DRY = Machine(is_dry=True)
LAYER = cases.Layer(cases.Model("dry", 48, 80, 4, 2, 16, 300), DRY.dtype, DRY.device)


def timed(name: str, make: Callable[[cases.Layer], cases.Case]) -> Iterator[Found]:
    """Run it, as a stopwatch would."""
    case = make(LAYER)
    assert case.run() is not None
    yield Figure(name, case.num_flops, "flop")


def found(
    offer: Callable[[], PrefillAttention], machine: Machine = DRY, time_it: object = timed
) -> list[Found]:
    return list(by_others("dry", LAYER, machine, {"double": offer}, time_it))  # type: ignore[arg-type] # each is one


def name_of(label: str) -> str:
    return names.prefill_by("double", label, "dry")


def test_each_kind_of_prompt_that_it_serves_is_timed() -> None:
    """Whole prompts alone by torch's; later chunks, too, by who knows block tables."""
    assert [one.name for one in found(PrefillDouble)] == [name_of(label) for label in PROMPTS]
    wholes = found(lambda: PrefillDouble(laters=False))
    assert [one.name for one in wholes] == [name_of("2k"), name_of("8k")]
    assert all(isinstance(one, Figure) for one in wholes)


def test_one_that_is_absent_refuses_or_is_wrong_is_said_to_be() -> None:
    """The engine would leave it out too: nothing of ours is broken."""

    def absent() -> PrefillAttention:
        raise RefusedError("the package is not installed")

    def raises() -> PrefillAttention:
        raise ValueError("what a package")

    assert found(absent) == [Absent(name_of("2k"), "the package is not installed")]
    assert found(raises) == [Absent(name_of("2k"), "ValueError: what a package")]
    (wrong,) = found(lambda: PrefillDouble(spoil=lambda out: out * 1.2))
    assert isinstance(wrong, Absent)
    assert "a row differs from our kernel's" in wrong.why


def test_one_that_float64_finds_wrong_is_no_fault_of_ours() -> None:
    """It passed the trial, and is wrong at 8k."""

    def broken(name: str, _make: object) -> Iterator[Found]:
        yield Broken(name, "differs from float64")

    assert [type(one) for one in found(PrefillDouble, time_it=broken)] == [Absent] * 3


def test_what_an_earlier_try_has_is_not_tried_again() -> None:
    """One that took the GPU with it would do so again."""
    passed = Machine(is_dry=True, passed=frozenset(map(name_of, PROMPTS)))

    assert found(PrefillDouble, passed) == []
    beyond = Machine(is_dry=True, passed=frozenset([name_of("2k")]))
    assert [one.name for one in found(PrefillDouble, beyond)] == [
        name_of("8k"),
        name_of("2k of 8k"),
    ]


def test_one_that_loses_the_gpu_is_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next process passes it by."""

    def raises() -> PrefillAttention:
        raise ValueError("illegal access")

    def is_lost(_machine: Machine, error: Exception) -> None:
        raise DeviceLostError(str(error))

    monkeypatch.setattr(Machine, "require_alive", is_lost)
    tried = by_others("dry", LAYER, DRY, {"double": raises}, timed)

    assert next(tried) == Absent(name_of("2k"), "ValueError: illegal access")
    with pytest.raises(DeviceLostError):
        next(tried)


def test_the_fastest_back_end_is_judged() -> None:
    """Whoever serves fastest is who serves: the target is for prompts, not for our kernel."""
    (target,) = (one for one in TARGETS if one.name == names.PREFILL_8K)
    ours, theirs = names.prefill("8k"), names.prefill_by("sdpa", "8k")
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


def test_the_suite_names_every_back_end() -> None:
    """One that is added to the engine is measured from then on."""
    assert set(offers(compiles=False)) == set(names.PREFILL_OTHERS)
