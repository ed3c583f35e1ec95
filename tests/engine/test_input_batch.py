"""A step says of a row only what it does not hold; see the scheduler's properties too."""

import struct

import numpy as np
import pytest
import torch

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import AT_ITS_ROW, RowWrites, row_numbers
from paceline_engine.errors import RequestError
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.input_batch import InputBatch
from paceline_engine.runner.staging import StepStaging
from paceline_kernels.input_prep import DRAW_COLUMNS
from paceline_testing.sampling_reference import parameters_of
from paceline_wire import Sampling

CPU = torch.device("cpu")


def an_input_batch(*, tokens_stay: bool = True, salt: bytes | None = None) -> InputBatch:
    return InputBatch(4, 8, block_size=4, vocab_size=100, salt=salt, tokens_stay=tokens_stay)


GREEDY = Sampling(max_tokens=9, temperature=0.0)
DRAWN = Sampling(max_tokens=9, temperature=0.7, seed=-5, top_k=3, top_p=0.9, min_p=0.1)


def a_request(
    row: int, token_ids: list[int], block_ids: list[int], sampling: Sampling = GREEDY
) -> Request:
    return Request(f"row {row}", token_ids, len(token_ids), sampling, row=row, block_ids=block_ids)


def prompts(*requests: Request) -> Batch:
    return Batch(
        tuple(
            ScheduledChunk(request, 0, len(request.token_ids), samples=True, is_decode=False)
            for request in requests
        ),
        num_decodes=0,
    )


def decodes(*starts: tuple[Request, int]) -> Batch:
    chunks = tuple(
        ScheduledChunk(one, start, 1, samples=True, is_decode=True) for one, start in starts
    )
    return Batch(chunks, num_decodes=len(chunks))


def writes_of(writes: RowWrites) -> list[tuple[int, int, list[int]]]:
    bounds = writes.bounds.tolist()
    runs = zip(writes.rows.tolist(), writes.columns.tolist(), bounds, bounds[1:], strict=False)
    return [(row, at, writes.numbers[first:end].tolist()) for row, at, first, end in runs]


def test_a_decode_writes_its_row_only_when_it_has_got_a_block() -> None:
    """Once in `block_size` steps, and then that one block."""
    input_batch = an_input_batch()
    long, short = a_request(2, [1] * 6, [7, 3]), a_request(0, [1] * 3, [5])
    seen = [writes_of(input_batch.prepare(prompts(long, short)).writes)]
    for step in range(6):
        if step == 1:
            short.block_ids.append(6)
        if step == 2:
            long.block_ids.append(4)
        inputs = input_batch.prepare(decodes((long, 6 + step), (short, 3 + step)))
        seen.append(writes_of(inputs.writes))

    assert seen == [
        [(2, 0, [7, 3]), (0, 0, [5])],
        [],
        [(0, 1, [6])],
        [(2, 2, [4])],
        [],
        [],
        [],
    ]


def test_a_decode_goes_on_with_the_token_at_its_row() -> None:
    """The host need not know it."""
    input_batch, request = an_input_batch(), a_request(1, [1] * 3, [5])
    assert input_batch.prepare(prompts(request)).token_ids.tolist() == [1, 1, 1]

    assert input_batch.prepare(decodes((request, 3))).token_ids.tolist() == [AT_ITS_ROW]


def test_a_step_that_is_run_again_brings_its_tokens() -> None:
    """What lies at the row was sampled behind them, by a step of which nothing came."""
    input_batch, request = an_input_batch(), a_request(1, [1] * 3, [5, 6])
    input_batch.prepare(prompts(request))
    input_batch.prepare(decodes((request, 3)))
    request.token_ids.append(42)

    assert input_batch.prepare(decodes((request, 3))).token_ids.tolist() == [42]
    assert input_batch.prepare(decodes((request, 4))).token_ids.tolist() == [AT_ITS_ROW]


def test_a_row_that_changes_hands_holds_nothing() -> None:
    """Whoever had it was at the same place, and held blocks enough."""
    input_batch, before = an_input_batch(), a_request(1, [1] * 3, [5])
    input_batch.prepare(prompts(before))
    after = a_request(1, [2, 3, 4, 55], [6])

    inputs = input_batch.prepare(decodes((after, 3)))

    assert writes_of(inputs.writes) == [(1, 0, [6])]
    assert inputs.token_ids.tolist() == [55]


def test_a_row_that_changes_hands_forgets_its_token() -> None:
    """Also where the new one's prompt was computed without anything being sampled."""
    input_batch, before = an_input_batch(), a_request(1, [1] * 3, [5])
    input_batch.prepare(prompts(before))
    after = a_request(1, [2, 3, 4, 55], [6])
    part = ScheduledChunk(after, 0, 3, samples=False, is_decode=False)
    input_batch.prepare(Batch((part,), num_decodes=0))

    assert input_batch.prepare(decodes((after, 3))).token_ids.tolist() == [55]


def test_a_request_that_comes_back_to_its_row_is_written_anew() -> None:
    """It may hold other blocks."""
    input_batch, request = an_input_batch(), a_request(1, [1] * 3, [5])
    input_batch.prepare(prompts(request))
    request.enter(1)
    request.block_ids = [6]

    assert writes_of(input_batch.prepare(prompts(request)).writes) == [(1, 0, [6])]


def test_a_row_is_told_once_what_its_owner_draws_by() -> None:
    """Behind its blocks, in the same copy; a step of drawn rows sends no more than a greedy one."""
    input_batch = an_input_batch(salt=b"salt")
    drawn, greedy = a_request(2, [1] * 3, [7], DRAWN), a_request(0, [1] * 3, [5])

    writes = writes_of(input_batch.prepare(prompts(drawn, greedy)).writes)

    assert [(row, column) for row, column, _ in writes] == [(2, 8), (2, 0), (0, 8), (0, 0)]
    assert writes[0][2] == [*row_numbers(drawn, b"salt")]
    assert writes[2][2] == [*row_numbers(greedy, b"salt")]
    again = input_batch.prepare(decodes((drawn, 3), (greedy, 3)))
    assert writes_of(again.writes) == []
    assert again.rows_suffice


@pytest.mark.parametrize("is_in_between", [False, True], ids=["at once", "beside others"])
def test_a_row_that_changes_hands_draws_by_its_new_owner(is_in_between: bool) -> None:
    """Its parameters, its seed and its own places, whoever had the row."""
    input_batch, tables = (
        an_input_batch(salt=b"salt"),
        DeviceTables(4, 8, 4, num_tokens=40, device=CPU),
    )
    before, other = a_request(1, [1] * 5, [5, 6]), a_request(3, [2] * 2, [4], DRAWN)
    tables.lay_out(input_batch.prepare(prompts(before, other)))
    after = a_request(1, [2, 3, 4], [6], DRAWN)
    batch = prompts(after)
    if is_in_between:
        batch = Batch((*decodes((other, 2)).chunks, *batch.chunks), num_decodes=1)
    inputs = input_batch.prepare(batch)

    tables.lay_out(inputs)

    seen, wanted = tables.parameters(inputs), parameters_of(inputs.sampled, (), b"salt")
    assert seen is not None
    if is_in_between:
        wanted.positions[0] += 1  # of a step on its way
    for name, column in wanted._asdict().items():
        assert torch.equal(getattr(seen, name), column), name


def test_rows_suffice_where_nobody_asks_for_more_than_a_draw() -> None:
    """One that does makes the host look at the step; where the rows hold no draws, all do."""
    plain = a_request(0, [1] * 3, [5], DRAWN)
    telling = a_request(1, [1] * 3, [6], Sampling(max_tokens=9, logprobs=1))

    assert an_input_batch(salt=b"").prepare(prompts(plain)).rows_suffice
    assert not an_input_batch(salt=b"").prepare(prompts(plain, telling)).rows_suffice
    assert not an_input_batch(salt=None).prepare(prompts(plain)).rows_suffice
    input_batch = an_input_batch(salt=b"")
    input_batch.prepare(prompts(telling))
    assert input_batch.prepare(prompts(a_request(1, [1], [6]))).rows_suffice


def test_numbers_of_a_row_keep_to_their_types() -> None:
    """What float32 cannot hold is its largest; a top-k beyond 32 bits keeps all the same."""
    asked = Sampling(max_tokens=1, temperature=1e300, seed=(1 << 63) - 1, top_k=1 << 40)

    numbers = row_numbers(a_request(0, [1], [1], asked), b"")

    assert len(numbers) == DRAW_COLUMNS
    assert numbers[:2] == (-1, (1 << 31) - 1)
    assert numbers[3] == (1 << 31) - 1
    assert struct.pack("<i", numbers[2]) == struct.pack("<f", torch.finfo(torch.float32).max)


def test_tokens_that_do_not_stay_are_brought() -> None:
    """A draft model's token may have been replaced; other ranks do not sample."""
    input_batch, request = an_input_batch(tokens_stay=False), a_request(1, [1] * 3, [5])
    input_batch.prepare(prompts(request))
    request.token_ids.append(77)

    assert input_batch.prepare(decodes((request, 3))).token_ids.tolist() == [77]


def test_a_token_beyond_the_vocabulary_names_its_request() -> None:
    """It would be read from foreign memory. Nothing is noted of the step, which is run again."""
    input_batch, good, bad = an_input_batch(), a_request(0, [1], [5]), a_request(1, [1, 100], [6])

    with pytest.raises(RequestError, match=r"must be in \[0, 100\), got 100") as error:
        input_batch.prepare(prompts(good, bad))

    assert error.value.request_id == "row 1"
    assert writes_of(input_batch.prepare(prompts(good)).writes) == [(0, 0, [5])]


def test_writes_that_are_too_many_go_in_several_copies() -> None:
    """Room is taken once: a burst of long prompts from the prefix cache may need more."""
    writes = RowWrites(
        np.array([3, 1]), np.array([0, 2]), np.array([0, 5, 7]), np.array([*range(10, 17)])
    )

    parts = writes.parts(7)

    assert [part for one in parts for part in writes_of(one)] == [
        (3, 0, [10, 11, 12]),
        (3, 3, [13, 14]),
        (1, 2, [15, 16]),
    ]
    assert all(sum(map(len, part.arrays)) <= 7 for part in parts)
    assert writes.parts(100) == [writes]


def test_large_writes_reach_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whichever copy they went."""
    monkeypatch.setattr("paceline_engine.runner.gpu_tables._WRITES_ROOM", 7)
    input_batch, tables = an_input_batch(), DeviceTables(4, 8, 4, num_tokens=40, device=CPU)
    first, second = a_request(2, [1] * 20, [9, 8, 7, 6, 5]), a_request(0, [1] * 5, [3, 2])

    step = tables.lay_out(input_batch.prepare(prompts(first, second)))

    assert step.block_table.tolist() == [[9, 8, 7, 6, 5], [3, 2, 0, 0, 0]]


def test_staged_arrays_arrive_side_by_side() -> None:
    """In one copy; the memory of the one before is not yet written again."""
    staging = StepStaging(8, CPU)
    first = staging.put([np.array([1, 2]), np.array([], dtype=np.int64), np.array([3])])
    assert [each.tolist() for each in first] == [[1, 2], [], [3]]
    pinned = [pinned.clone() for pinned in staging._pinned]

    staging.put([np.array([9, 9, 9])])

    kept = [torch.equal(*each) for each in zip(pinned, staging._pinned, strict=True)]
    assert sorted(kept) == [False, True]


def test_more_than_there_is_room_for_is_refused() -> None:
    """The limit is a capacity: to exceed it is a fault of ours."""
    with pytest.raises(ValueError, match="at most 2 numbers, got 3"):
        StepStaging(2, CPU).put([np.array([1, 2, 3])])
