"""What rank 0 tells of a step arrives as it was, through a ring in shared memory."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.step_tensors import AT_ITS_ROW, Int64s, RowWrites, StepInputs
from paceline_engine.model.group import Group
from paceline_engine.model.message_ring import MessageRing, RingReader
from paceline_engine.runner.graph_use import ExecutionMode
from paceline_engine.runner.told_step import ToldSizes, ToldStep, decode, encode

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
often = settings(deadline=None)


def _numbers(draw: st.DrawFn, length: int) -> Int64s:
    return np.array(draw(st.lists(NUMBERS, min_size=length, max_size=length)), dtype=np.int64)


@st.composite
def steps(draw: st.DrawFn) -> StepInputs:
    """Arrays of lengths that belong together; what they hold is of no account."""
    sequences, tokens, sampled, runs, written = (draw(st.integers(0, 9)) for _ in range(5))
    return StepInputs(
        num_decodes=draw(st.integers(0, sequences)),
        rows=_numbers(draw, sequences),
        starts=_numbers(draw, sequences),
        bounds=_numbers(draw, sequences + 1),
        token_ids=_numbers(draw, tokens),
        writes=RowWrites(
            _numbers(draw, runs),
            _numbers(draw, runs),
            _numbers(draw, runs + 1),
            _numbers(draw, written),
        ),
        sample_rows=_numbers(draw, sampled),
        sampled=(),
        kept_at=None,
        keeps_every_state=draw(st.booleans()),
    )


def _arrays(step: StepInputs) -> list[Int64s]:
    return [
        step.rows,
        step.starts,
        step.bounds,
        step.token_ids,
        step.sample_rows,
        *step.writes.arrays,
    ]


def _nobody() -> None: ...


@often
@given(steps(), st.sampled_from(get_args(ExecutionMode)), st.integers(10, 70))
def test_a_step_arrives_as_it_was(step: StepInputs, mode: ExecutionMode, slot_numbers: int) -> None:
    """Whether it fills a slot of the ring, a part of one, or several."""
    ring = MessageRing(2, slot_numbers=slot_numbers, num_slots=16)
    ring.put(encode(ToldStep(mode, step)), _nobody)

    for reader in ring.readers:
        told = decode(reader.get(_nobody))
        assert isinstance(told, ToldStep)
        assert told.mode == mode
        assert told.inputs.num_decodes == step.num_decodes
        assert told.inputs.keeps_every_state == step.keeps_every_state
        assert told.inputs.has_tokens_at_rows == step.has_tokens_at_rows
        for given_, wanted in zip(_arrays(told.inputs), _arrays(step), strict=True):
            np.testing.assert_array_equal(given_, wanted)


@often
@given(st.lists(st.integers(1, 1024)))
def test_sizes_arrive_as_they_were(sizes: list[int]) -> None:
    message = np.concatenate(encode(ToldSizes(tuple(sizes))))

    assert decode(message) == ToldSizes(tuple(sizes))


@often
@given(steps(), st.integers(-2, 3).filter(bool))
def test_a_message_of_another_length_is_refused(step: StepInputs, more: int) -> None:
    """A layout that the two sides do not share must not be read as a step."""
    message = np.concatenate(encode(ToldStep("eager", step)))
    cut = np.resize(message, len(message) + more)

    with pytest.raises(ValueError, match="must be"):
        decode(cut)


@pytest.mark.parametrize("length", [0, 1, 6, 7, 8, 14, 15, 16, 23, 24])
def test_messages_fill_slots_to_the_last_number(length: int) -> None:
    """A slot of eight holds a length and seven numbers; the ring goes round many times."""
    ring = MessageRing(1, slot_numbers=8, num_slots=4)
    [reader] = ring.readers
    for turn in range(9):
        sent = np.arange(length) + turn
        ring.put([sent[: length // 2], sent[length // 2 :]], _nobody)

        np.testing.assert_array_equal(reader.get(_nobody), sent)


def _full() -> None:
    raise TimeoutError


def test_a_writer_goes_ahead_of_its_readers_by_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for nobody until then, and then for the last reader alone."""
    monkeypatch.setattr("paceline_engine.model.message_ring._LOOK_S", 0)
    ring = MessageRing(2, slot_numbers=8, num_slots=4)
    quick, slow = ring.readers
    for turn in range(4):
        ring.put([np.array([turn])], _full)
        assert quick.get(_full).tolist() == [turn]

    with pytest.raises(TimeoutError):
        ring.put([np.array([4])], _full)
    assert slow.get(_full).tolist() == [0]


def test_a_reader_that_hears_nothing_asks_whether_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 may have died."""
    monkeypatch.setattr("paceline_engine.model.message_ring._LOOK_S", 0)
    [reader] = MessageRing(1).readers

    with pytest.raises(TimeoutError):
        reader.get(_full)


def _echo(reader: RingReader, back: Callable[[list[int]], None]) -> None:
    for _ in range(50):
        back(reader.get(_nobody).tolist())


def test_another_process_reads_what_is_written() -> None:
    """In order, also where the writer is far ahead and a message is larger than the ring."""
    context = get_context("spawn")
    ring = MessageRing(1, slot_numbers=8, num_slots=4)
    heard = context.SimpleQueue()
    process = context.Process(target=_echo, args=(ring.readers[0], heard.put), daemon=True)
    process.start()
    sent = [list(range(turn)) for turn in range(50)]
    for numbers in sent:
        ring.put([np.array(numbers, dtype=np.int64)], _nobody)

    assert [heard.get() for _ in range(50)] == sent
    process.join()
    assert process.exitcode == 0


def _follow(group: Group, back: Connection) -> None:
    try:
        group.hear()
    except RuntimeError as error:
        back.send(str(error))


def _die_early(back: Connection) -> None:
    """Start a rank as rank 0 does, and die without a word."""
    other = Group(1, 2)
    [other._reader] = MessageRing(1).readers
    get_context("spawn").Process(target=_follow, args=(other, back), daemon=True).start()
    os._exit(0)


def test_a_rank_ends_where_rank_0_has_died() -> None:
    """It would wait for ever else, and hold a GPU."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    first = context.Process(target=_die_early, args=(theirs,))
    first.start()
    theirs.close()
    first.join()

    assert ours.poll(120)
    assert ours.recv() == "Rank 0 has ended."


def test_nothing_of_a_step_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickling a step took most of the time of telling it."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("pickled")

    monkeypatch.setattr(pickle, "dumps", refused)
    monkeypatch.setattr(pickle, "Pickler", refused)
    ring = MessageRing(1)
    none = np.empty(0, dtype=np.int64)
    rows = np.arange(3)
    step = StepInputs(
        num_decodes=3,
        rows=rows,
        starts=rows + 7,
        bounds=np.arange(4),
        token_ids=np.full(3, AT_ITS_ROW),
        writes=RowWrites(none, none, np.zeros(1, dtype=np.int64), none),
        sample_rows=rows,
        sampled=(),
        kept_at=None,
    )
    ring.put(encode(ToldStep("decode graph", step)), _nobody)

    told = decode(ring.readers[0].get(_nobody))
    assert isinstance(told, ToldStep)
    assert told.inputs.has_tokens_at_rows
    assert not replace(step, num_decodes=0).has_tokens_at_rows
