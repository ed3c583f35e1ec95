"""Ranks that read each other's memory add up what they hold, in any order that they run in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline_engine.engine.engine import Engine
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.model.peer_memory import PeerMemory, PeerWay, Ways
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_testing.clock import ManualClock
from paceline_testing.peer_double import FileOps, FilePeers, Turns, file_peers
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

WIDTH = 4
MOST_ROWS = 3


@dataclass(frozen=True)
class Message:
    """What every rank sums at a time."""

    rows: int
    in_place: bool
    """The product writes where peers read; else it is copied there."""


MESSAGES = st.lists(
    st.builds(Message, st.integers(1, MOST_ROWS), st.booleans()), min_size=1, max_size=4
)
ORDERS = st.lists(st.integers(0, 7), max_size=60)


def _part(rank: int, number: int, rows: int) -> Tensor:
    """Different for every rank, message and place; sums are exact."""
    numbers = torch.arange(rows * WIDTH, dtype=torch.float32).view(rows, WIDTH)
    return numbers.add_(100 * number + 1000 * 2**rank)


def _summed(
    messages: Sequence[Message],
    size: int,
    order: Sequence[int],
    way: PeerWay,
    sum_: Callable[[PeerMemory, Tensor], Tensor | None] = PeerMemory.sum_,
) -> list[list[Tensor]]:
    """Sum in `size` ranks; every result is read after the last of them."""
    turns = Turns(size, [rank % size for rank in order])
    with TemporaryDirectory() as folder:
        numbers = MOST_ROWS * WIDTH
        sources = [FilePeers(Path(folder), rank, size) for rank in range(size)]
        buffers = [each.allocate(numbers, torch.float32, torch.device("cpu")) for each in sources]
        all_ops = [each.ops(numbers, torch.float32) for each in sources]

        def rank_of(rank: int) -> list[Tensor]:
            ops = all_ops[rank]
            ops.turn = lambda: turns.turn(rank)
            peers = PeerMemory(buffers[rank], ops, Ways(((1 << 20, way),)))
            results = []
            for number, message in enumerate(messages):
                part = _part(rank, number, message.rows)
                place = peers.place((message.rows, WIDTH), torch.float32)
                assert place is not None
                summed = sum_(peers, place.copy_(part) if message.in_place else part)
                assert summed is not None
                results.append(summed)
            return results

        ranks = [lambda rank=rank: rank_of(rank) for rank in range(size)]
        return [[each.clone() for each in results] for results in turns.run(ranks)]


def _require_sums(messages: Sequence[Message], results: Sequence[Sequence[Tensor]]) -> None:
    size = len(results)
    for number, message in enumerate(messages):
        parts = [_part(rank, number, message.rows) for rank in range(size)]
        wanted = torch.stack(parts).sum(0)
        for of_rank in results:
            assert torch.equal(of_rank[number], wanted)


@settings(deadline=None, max_examples=40)
@given(MESSAGES, st.sampled_from([2, 4]), ORDERS, st.sampled_from(["one_shot", "two_shot"]))
def test_every_rank_has_every_sum_in_any_order(
    messages: list[Message], size: int, order: list[int], way: PeerWay
) -> None:
    """Messages of any sizes follow each other in one buffer; results stay."""
    _require_sums(messages, _summed(messages, size, order, way))


def _without_the_last_wait(ops: FileOps, place: Tensor, out: Tensor) -> None:
    ops.meet()
    ops.add_up(place, out)


def _tells_before_it_has_written(ops: FileOps, place: Tensor, out: Tensor) -> None:
    """As torch's op that copies by itself: a thread signals, others have not written yet."""
    late, numbers = place.flatten()[1:].clone(), place.view(-1)
    numbers[1:] = 0.0
    ops._signals[:, ops.rank] = ops._met + 1
    ops.turn()
    numbers[1:] = late
    ops.meet()
    ops.add_up(place, out)
    ops.meet()


def _left_in_the_buffer(peers: PeerMemory, x: Tensor) -> Tensor | None:
    summed = PeerMemory.sum_(peers, x)
    place = peers.place(tuple(x.shape), x.dtype)
    assert summed is not None
    assert place is not None
    return place.copy_(summed)


Fails = Callable[[list[Message], list[int]], None]


def _found(check: Fails) -> None:
    """Require that some order of the ranks shows the fault."""
    search = settings(
        deadline=None,
        max_examples=300,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=[HealthCheck.nested_given],
    )
    with pytest.raises(AssertionError):
        search(given(MESSAGES, ORDERS)(check))()


@pytest.mark.parametrize(
    "faulty",
    [_without_the_last_wait, _tells_before_it_has_written],
    ids=["the buffer is written before all have read", "a rank tells before it has written"],
)
def test_an_op_that_waits_too_little_is_found(
    faulty: Callable[[FileOps, Tensor, Tensor], None],
) -> None:
    """One buffer is enough because the op ends when all have read."""

    def check(messages: list[Message], order: list[int]) -> None:
        with mock.patch.object(FileOps, "one_shot", faulty):
            _require_sums(messages, _summed(messages, 2, order, "one_shot"))

    _found(check)


def test_a_sum_that_stays_in_the_buffer_is_found() -> None:
    """The next message comes to the same place."""

    def check(messages: list[Message], order: list[int]) -> None:
        results = _summed(messages, 2, order, "one_shot", _left_in_the_buffer)
        _require_sums(messages, results)

    _found(check)


def _answers(loaded: LoadedModel) -> list[list[int]]:
    engine = Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=Limits(max_batch_size=3, token_budget=13),
        clock=ManualClock(),
    )
    generator = torch.Generator().manual_seed(1)
    sampling = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
    lengths = (3, 40, 17, 25)
    for number, length in enumerate(lengths):
        prompt = torch.randint(3, 300, (length,), generator=generator).tolist()
        engine.submit(Submit(str(number), prompt, sampling))
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(lengths))}
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None
            answers[output.id] += output.token_ids
    return list(answers.values())


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_share_memory_say_what_one_says(tmp_path: Path, size: int) -> None:
    """Processes of their own meet by gloo; decodes go through files that all map, prompts by gloo.

    Two ranks take one shot, four take two.
    """
    folder, shared = tmp_path / "model", tmp_path / "shared"
    shared.mkdir()
    make_tiny_model(folder, "llama", num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    settings = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_bytes=1 << 20,
        max_batch_size=8,
    )
    alone = load_model(settings, lambda _stage, _done: None)
    wanted = _answers(alone)
    with file_peers(shared, size):
        asked = settings.model_copy(update={"tensor_parallel_size": size})
        together = load_model(asked, lambda _stage, _done: None)
    try:
        FileOps.calls.clear()
        answers = _answers(together)
    finally:
        together.group.close()

    assert answers == wanted
    assert set(FileOps.calls) == {"one_shot" if size == 2 else "two_shot"}
