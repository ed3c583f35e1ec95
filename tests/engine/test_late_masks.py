"""A grammar whose mask is late delays its own row, and changes nobody's output."""

import random
import threading
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from paceline_engine.core.constraint import TokenBitmask
from paceline_engine.engine.engine import Engine
from paceline_testing.tiny_engine import TinyEngine, run_to_end
from paceline_wire import Output, Sampling, Submit

FREE = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
DRAWN = Sampling(max_tokens=8, temperature=1.0, seed=7, ignore_eos=True)


class EveryThird:
    """A constraint: of the tokens one in three may follow, others at every place.

    It waits at its gate wherever the output has one of these lengths.
    """

    def __init__(self, gated: Sequence[int] = ()) -> None:
        self.gates = {length: threading.Event() for length in gated}
        self.asked: list[int] = []

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        """Allow a third of the tokens, once the gate is open."""
        length = len(output_ids)
        self.asked.append(length)
        if length in self.gates:
            self.gates[length].wait(timeout=60)
        bits = np.arange(bitmask.size * 32) % 3 == length % 3
        bitmask[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def open(self) -> None:
        """Let everything through."""
        for gate in self.gates.values():
            gate.set()


class SlowAtFirst(EveryThird):
    """Its first mask takes 10 ms of its thread's own time: longer than a step waits."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        """Work, then go on as any other."""
        until = time.thread_time() + 0.01
        while not output_ids and time.thread_time() < until:
            pass
        super().fill_bitmask(output_ids, bitmask)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    return TinyEngine(tmp_path_factory.mktemp("tiny"))


def tokens(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def alone(tiny: TinyEngine, name: str, prompt: list[int], sampling: Sampling) -> list[int]:
    engine = tiny.engine()
    engine.submit(Submit(name, prompt, sampling), EveryThird())
    return tokens(run_to_end(engine)[name])


def run_until_quiet(engine: Engine, outputs: dict[str, list[Output]], names: set[str]) -> None:
    """Step until these have ended."""
    for _ in range(200):
        for output in engine.step():
            outputs.setdefault(output.id, []).append(output)
        if all(outputs.get(name) and outputs[name][-1].finish for name in names):
            return
    raise AssertionError(f"{names} have not ended: {outputs.keys()}")


@pytest.mark.parametrize("length", [0, 1, 5], ids=["first token", "second", "later"])
def test_a_late_mask_holds_nobody_else(tiny: TinyEngine, length: int) -> None:
    """The others end while it waits; then it goes on with the same output, blocks and row kept."""
    long = msgspec.structs.replace(FREE, max_tokens=40)
    expected = {
        "free": tokens(tiny.run({"free": [5, 6, 7]}, long)["free"]),
        "quick": alone(tiny, "quick", [8, 9], DRAWN),
        "late": alone(tiny, "late", [3, 4, 5, 6], DRAWN),
    }
    engine, late = tiny.engine(), EveryThird([length])
    engine.submit(Submit("late", [3, 4, 5, 6], DRAWN), late)
    engine.submit(Submit("free", [5, 6, 7], long))
    outputs: dict[str, list[Output]] = {}

    while length not in late.asked:  # the threads that fill masks may be slow
        for output in engine.step():
            outputs.setdefault(output.id, []).append(output)
    engine.submit(Submit("quick", [8, 9], DRAWN), EveryThird())
    run_until_quiet(engine, outputs, {"free", "quick"})
    so_far, running = len(tokens(outputs.get("late", []))), engine.requests.num_running
    late.open()
    run_until_quiet(engine, outputs, {"late"})

    assert (so_far, running) == (length, 1)
    assert {name: tokens(given) for name, given in outputs.items()} == expected
    assert late.asked == list(range(8))  # no mask was computed twice
    assert engine.is_idle
    assert engine.requests.blocks.pool.num_used == 0


def test_with_nothing_else_to_do_a_step_waits_for_the_mask(tiny: TinyEngine) -> None:
    """Else the row would be computed again and again."""
    expected = alone(tiny, "late", [3, 4], DRAWN)
    engine, late = tiny.engine(), EveryThird([2])
    engine.submit(Submit("late", [3, 4], DRAWN), late)
    opener = threading.Timer(0.3, late.open)

    opener.start()
    outputs = run_to_end(engine)

    assert tokens(outputs["late"]) == expected
    assert engine.counters.steps == 8


def test_a_request_that_leaves_while_its_mask_is_late_leaves_nothing(tiny: TinyEngine) -> None:
    """Row and blocks are free at once, and its name may come again."""
    engine, late = tiny.engine(), EveryThird([1])
    engine.submit(Submit("a", [3, 4], DRAWN), late)
    engine.submit(Submit("free", [5, 6, 7], FREE))
    outputs: dict[str, list[Output]] = {}
    run_until_quiet(engine, outputs, {"free"})

    engine.abort(["a"])
    used = engine.requests.blocks.pool.num_used
    engine.step()
    engine.submit(Submit("a", [3, 4], DRAWN), EveryThird())
    again = run_to_end(engine)
    late.open()

    assert used == 0
    assert tokens(again["a"]) == alone(tiny, "a", [3, 4], DRAWN)


@pytest.mark.parametrize("seed", range(6))
def test_outputs_are_the_same_however_late_masks_are(tiny: TinyEngine, seed: int) -> None:
    """Random gates that open at random steps, random arrivals and preemptions."""
    chance = random.Random(seed)
    prompts = {str(n): [chance.randrange(3, 60) for _ in range(1 + n % 5)] for n in range(6)}
    expected = {name: alone(tiny, name, prompt, DRAWN) for name, prompt in prompts.items()}
    free = tokens(tiny.run({"free": [5, 6, 7]}, FREE)["free"])
    engine = tiny.engine()
    late = {name: EveryThird(chance.sample(range(8), chance.randrange(4))) for name in prompts}
    coming = list(prompts.items())
    outputs: dict[str, list[Output]] = {}

    engine.submit(Submit("free", [5, 6, 7], FREE))
    for _ in range(400):
        if coming and chance.random() < 0.4:
            name, prompt = coming.pop()
            engine.submit(Submit(name, prompt, DRAWN), late[name])
        for gated in late.values():
            for gate in gated.gates.values():
                if chance.random() < 0.15 or engine.requests.num_running < 3:
                    gate.set()
        for output in engine.step():
            outputs.setdefault(output.id, []).append(output)
        running = [each for each in engine.requests.running() if not each.num_in_flight]
        if running and chance.random() < 0.1:
            engine.requests.preempt(chance.choice(running))
        if engine.is_idle and not coming:
            break

    assert {name: tokens(given) for name, given in outputs.items()} == {**expected, "free": free}
    assert engine.requests.blocks.pool.num_used == 0


def test_quick_masks_do_not_wait_behind_slow_ones(tiny: TinyEngine) -> None:
    """Slow rows have threads apart: more of them than threads hold no quick one."""
    engine = tiny.engine()
    slow = [SlowAtFirst([1]) for _ in range(6)]
    engine.submit(Submit("free", [5, 6, 7], Sampling(max_tokens=60, temperature=0.0)))
    for number, constraint in enumerate(slow):
        engine.submit(Submit(f"slow {number}", [3, number], DRAWN), constraint)
    outputs: dict[str, list[Output]] = {}
    for _ in range(400):
        if any(1 in constraint.asked for constraint in slow):
            break
        engine.step()
    assert any(1 in constraint.asked for constraint in slow)

    engine.submit(Submit("quick", [8, 9], DRAWN), EveryThird())
    run_until_quiet(engine, outputs, {"quick"})
    for constraint in slow:
        constraint.open()

    assert tokens(outputs["quick"]) == alone(tiny, "quick", [8, 9], DRAWN)


def test_who_is_late_without_work_of_its_own_is_not_slow(tiny: TinyEngine) -> None:
    """A busy machine makes a mask late; its row does not wait behind slow ones from then on."""
    engine = tiny.engine()
    delayed, slow = EveryThird([0]), [SlowAtFirst([0, 1]) for _ in range(4)]
    engine.submit(Submit("free", [5, 6, 7], Sampling(max_tokens=60, temperature=0.0)))
    engine.submit(Submit("delayed", [8, 9], DRAWN), delayed)
    for number, constraint in enumerate(slow):
        engine.submit(Submit(f"slow {number}", [3, number], DRAWN), constraint)
    outputs: dict[str, list[Output]] = {}
    for _ in range(3):
        engine.step()
    for constraint in slow:
        constraint.gates[0].set()
    for _ in range(400):
        if any(1 in constraint.asked for constraint in slow):
            break
        engine.step()

    delayed.open()
    run_until_quiet(engine, outputs, {"delayed"})
    were_held = [constraint.asked[-1] for constraint in slow]
    for constraint in slow:
        constraint.open()

    assert tokens(outputs["delayed"]) == alone(tiny, "delayed", [8, 9], DRAWN)
    assert max(were_held) == 1
