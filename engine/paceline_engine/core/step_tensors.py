"""One step's inputs: as the host knows them (`StepInputs`), and on the device (`StepTensors`).

`RowTables` is the port between the two: it makes the tensors from the inputs and from what the
device keeps for each row. `SamplingTensors` are what tokens are drawn by.
"""

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.request import Request

Int32s: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_MOST_TOP_K = (1 << 31) - 1
_LARGEST = torch.finfo(torch.float32).max

AT_ITS_ROW = -1
"""In place of a token: the one that was sampled last for its row, wherever that lies."""


@dataclass(frozen=True, slots=True)
class RowWrites:
    """Updates of the row tables since the step before: W runs of numbers, each within one row.

    The numbers are block ids, and, when a row gets a new owner, its sampling parameters, which lie
    in the columns behind the blocks.
    """

    rows: Int64s  # [W]
    columns: Int64s  # [W]: where each run begins in its row
    bounds: Int64s  # [W + 1]: run w is numbers[bounds[w] : bounds[w + 1]]
    numbers: Int64s  # [B]: of 32 bits

    def __len__(self) -> int:
        """Count the runs."""
        return len(self.rows)

    @property
    def arrays(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return every array, in the order above."""
        return self.rows, self.columns, self.bounds, self.numbers

    def parts(self, room: int) -> list["RowWrites"]:
        """Cut into parts of up to `room` numbers each; nearly always there is one part."""
        if sum(map(len, self.arrays)) <= room:
            return [self]
        most = room - 4  # beside a run's row, column and two bounds
        parts = []
        for run, (first, end) in enumerate(itertools.pairwise(self.bounds.tolist())):
            for begin in range(first, end, most):
                numbers = self.numbers[begin : min(begin + most, end)]
                column = self.columns[run : run + 1] + (begin - first)
                bounds = np.array([0, len(numbers)], dtype=np.int64)
                parts.append(RowWrites(self.rows[run : run + 1], column, bounds, numbers))
        return parts


@dataclass(frozen=True, slots=True)
class StepInputs:
    """T tokens of S sequences, decodes first; see docs/kv-layout.md."""

    num_decodes: int
    rows: Int64s  # [S]: the row of each sequence
    starts: Int64s  # [S]: place of its first token
    bounds: Int64s  # [S + 1]: its tokens are [bounds[s], bounds[s + 1])
    token_ids: Int64s  # [T]; a decode's may be AT_ITS_ROW
    writes: RowWrites
    sample_rows: Int64s  # [R]: tokens whose logits are wanted
    sampled: tuple[Request, ...]  # [R]: the requests that they belong to
    kept_at: Int64s | None  # [R]: rows where the sampled tokens are left; None: nowhere
    is_plain: bool = False
    """Every request that samples is plain: no masks, penalties or logprobs."""
    rows_suffice: bool = False
    """Sampling needs only the values in the row tables: no request has to be read."""
    ahead: tuple[int, ...] = ()  # [R]: a draft's tokens before each, all 0 where empty
    reads_prompts: bool = False
    """Prompt logprobs or embeddings are asked for."""
    keeps_every_state: bool = False
    """The final state of every token is kept, for prompt logprobs or embeddings."""
    adapter_slots: Int64s | None = None  # [T]
    """The slot of each token's adapter, -1 for none; None where no adapter takes part."""

    @property
    def has_tokens_at_rows(self) -> bool:
        """Whether a decode's token lies at its row alone."""
        return bool((self.token_ids[: self.num_decodes] == AT_ITS_ROW).any())

    @property
    def ends(self) -> Int64s:  # [S]
        """Tokens of each sequence up to the end of the step: what its last one attends to."""
        ends: Int64s = self.starts + self.bounds[1:] - self.bounds[:-1]
        return ends

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:  # [S - num_decodes]
        """The tokens of each sequence behind the decodes, and what its last one attends to."""
        counts = np.diff(self.bounds[self.num_decodes :])
        return tuple(zip(counts.tolist(), self.ends[self.num_decodes :].tolist(), strict=True))

    @property
    def sampled_at(self) -> tuple[Int64s, Int64s]:  # each [R]
        """The row of each token that samples, and its place in its sequence."""
        if len(self.sample_rows) == len(self.token_ids) == len(self.rows):
            return self.rows, self.starts
        sequences = np.searchsorted(self.bounds, self.sample_rows, side="right") - 1
        places = self.starts[sequences] + self.sample_rows - self.bounds[sequences]
        return self.rows[sequences], places

    @property
    def kept_rows(self) -> Int64s | None:
        """Tokens whose final state is read; None for all."""
        is_all = self.keeps_every_state or len(self.sample_rows) == len(self.token_ids)
        return None if is_all else self.sample_rows


@dataclass(frozen=True, slots=True)
class StepTensors:
    """T tokens of S sequences on the model's device, decodes first; see docs/kv-layout.md."""

    num_decodes: int
    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64: block * block_size + offset, where the token's k and v go
    block_table: Tensor  # [S, P] int32, padded with block 0
    bounds: Tensor  # [S + 1] int32: the tokens of sequence s are [bounds[s], bounds[s + 1])
    context_lens: Tensor  # [S] int32: keys that its last token sees, itself included
    chunks: tuple[tuple[int, int], ...]  # [S - num_decodes]: tokens and keys of each, on the host
    adapter_slots: Tensor | None = None  # [T] int64: as in `StepInputs`


class SamplingTensors(NamedTuple):
    """Sampling parameters in the order in which `paceline_kernels.sample_tokens` takes them."""

    seeds: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64: place in its sequence of the token that is drawn
    temperatures: Tensor  # [rows] float32
    top_k: Tensor  # [rows] int32
    top_p: Tensor  # [rows] float32
    min_p: Tensor  # [rows] float32

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> "SamplingTensors":
        """Take memory for so many rows; it is not written yet."""

        def each(dtype: torch.dtype) -> Tensor:
            return torch.empty(num_rows, dtype=dtype, device=device)

        floats = [each(torch.float32) for _ in range(3)]
        longs = [each(torch.int64) for _ in range(2)]
        return cls(longs[0], longs[1], floats[0], each(torch.int32), floats[1], floats[2])

    def first(self, num_rows: int) -> "SamplingTensors":
        """Return views of the first rows."""
        return SamplingTensors(*(each[:num_rows] for each in self))

    def at(self, rows: Tensor) -> "SamplingTensors":
        """Return copies of some rows."""
        return SamplingTensors(*(each[rows] for each in self))


class RowTables(Protocol):
    """Per-row state beside the model: the blocks, sampling parameters and newest token of each."""

    def lay_out(self, inputs: StepInputs) -> StepTensors:
        """Write what changed in the rows, then make the step's tensors from them."""
        ...

    def with_tokens(self, inputs: StepInputs) -> StepInputs:
        """Fill in the tokens at the step's rows, as far as the host can read them there."""
        ...

    def parameters(self, inputs: StepInputs) -> SamplingTensors | None:  # [R]
        """Return the sampling parameters of the step laid out last; None where rows hold none."""
        ...

    def keep(self, inputs: StepInputs, tokens: Tensor) -> None:  # [R]
        """Store the sampled tokens in their rows, where the next step reads them."""
        ...


def row_numbers(request: Request, salt: bytes) -> tuple[int, ...]:
    """Return a request's `SamplingTensors` without the position, as numbers of its row.

    There are `paceline_kernels.input_prep.DRAW_COLUMNS` of them.
    """
    sampling = request.sampling
    seed = (seed_of(request, salt) + (1 << 63)) % (1 << 64) - (1 << 63)
    return struct.unpack(
        "<6i",
        struct.pack(
            "<qfiff",
            seed,
            min(sampling.temperature, _LARGEST),
            min(max(sampling.top_k, 0), _MOST_TOP_K),
            sampling.top_p,
            sampling.min_p,
        ),
    )


def seed_of(request: Request, salt: bytes) -> int:
    """Return the request's own seed, or one that only this engine run gives to its id."""
    if request.sampling.seed is not None:
        return request.sampling.seed
    digest = blake2b(request.id.encode(), key=salt, digest_size=8).digest()
    return int.from_bytes(digest, "little")


def to_device(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for it; on a CPU the memory is shared.

    A copy from memory that is not pinned waits for all that the device still has to do. Pinned
    memory comes from torch's cache, which gives it to nobody else before the copy is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the host; the function that is returned waits for the copy.

    What the step computes meanwhile is not held up. On a CPU the memory is shared.
    """
    if tensor.device.type == "cpu":
        return lambda: tensor
    pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        copied.synchronize()
        return pinned

    return wait
