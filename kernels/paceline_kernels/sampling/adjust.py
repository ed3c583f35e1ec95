"""What a request asks to change in its row's scores: penalties, and what a grammar rules out.

A program takes a row: its distinct tokens lie in a list that the host knows, and the one on its
way, which the host does not know yet, is counted with them.
"""

import triton
import triton.language as tl

from paceline_kernels.dependent.kernel import wait_for_earlier


@triton.jit
def _penalised(score, count, repetition, frequency, presence):
    """The formulas of CTRL for repetition, and of OpenAI's API."""
    score = tl.where(score > 0, score / repetition, score * repetition)
    return score - frequency * count - tl.where(count > 0, presence, 0.0)


# What changes from step to step is not compiled in: nothing compiles while serving.
@triton.jit(
    do_not_specialize_on_alignment=[
        "scores_ptr",
        "ids_ptr",
        "counts_ptr",
        "starts_ptr",
        "arriving_ptr",
        "repetition_ptr",
        "frequency_ptr",
        "presence_ptr",
    ]
)
def _penalise_kernel(
    scores_ptr,
    ids_ptr,
    counts_ptr,
    starts_ptr,
    arriving_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    vocab,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Penalise the tokens of one row, each once."""
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    row_ptr = scores_ptr + row * vocab
    arriving = tl.load(arriving_ptr + row).to(tl.int32)
    repetition = tl.load(repetition_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    presence = tl.load(presence_ptr + row)
    start, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    num_known = tl.full([], 0, dtype=tl.int32)
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < end
        ids = tl.load(ids_ptr + at, mask=inside, other=-2)
        is_arriving = (ids == arriving).to(tl.int32)
        num_known += tl.sum(is_arriving, axis=0)
        counts = (tl.load(counts_ptr + at, mask=inside, other=0) + is_arriving).to(tl.float32)
        scores = tl.load(row_ptr + ids, mask=inside, other=0.0)
        scores = _penalised(scores, counts, repetition, frequency, presence)
        tl.store(row_ptr + ids, scores, mask=inside)
    if (arriving >= 0) & (num_known == 0):
        score = tl.load(row_ptr + arriving)
        tl.store(row_ptr + arriving, _penalised(score, 1.0, repetition, frequency, presence))


@triton.jit(do_not_specialize_on_alignment=["scores_ptr", "rows_ptr", "words_ptr"])
def _forbid_kernel(
    scores_ptr,
    rows_ptr,
    words_ptr,
    vocab,
    num_words,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Write -inf over the tokens of a tile of one row whose bits are 0."""
    wait_for_earlier(IS_DEPENDENT)
    mask = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + mask)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab
    words = tl.load(words_ptr + mask * num_words + columns // 32, mask=inside, other=-1)
    is_forbidden = ((words >> (columns % 32)) & 1) == 0
    tl.store(scores_ptr + row * vocab + columns, float("-inf"), mask=inside & is_forbidden)
