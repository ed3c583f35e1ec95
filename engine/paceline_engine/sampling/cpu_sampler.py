"""From logits to tokens on a CPU, for all rows of a step at once; for a GPU see `DeviceSampler`.

Greedy rows take the first of the largest logits. The others draw once: the token at which the
running sum of probabilities passes the draw. A draw follows from seed and position alone, so it
does not depend on the batch, on a preemption, or on how a prompt was cut into chunks. Rows with
top-k or top-p sum over their candidates, best first; the candidates are nearly always few, so a
partial sort finds them.

Whatever else a request asks for (penalties, biases, logprobs) is done for its row alone:
`adjusted_rows.py`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import SamplingTensors, seed_of
from paceline_engine.sampling.adjusted_rows import AdjustedRows
from paceline_engine.sampling.adjustments import Adjustments
from paceline_engine.sampling.masks import PendingMasks
from paceline_engine.sampling.sampler import (
    GREEDY_BELOW,
    NOT_A_TOKEN,
    PreviousTokens,
    SampledTokens,
)
from paceline_kernels.cpu import native_ops

# Candidates looked at before a whole sort: 49,152 logits take 0.3 ms this way and 3 ms the other.
_FEW = 256
_MASK = (1 << 64) - 1


class CpuSampler:
    """Implements `Sampler` by torch's ops."""

    def __init__(self, eos_token_ids: Sequence[int], salt: bytes) -> None:
        """`salt`, random per engine run, makes the seeds of requests that bring none."""
        self._adjustments = Adjustments(eos_token_ids)
        self._salt = salt
        self._previous = PreviousTokens()

    def sample(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        masks: PendingMasks | None = None,
        *,
        ahead: Sequence[int] = (),
        parameters: SamplingTensors | None = None,
    ) -> SampledTokens:
        """See `Sampler`."""
        del parameters  # looked up at the requests
        adjusted = None
        if not all(each.is_plain for each in requests):
            adjusted = AdjustedRows.take(
                logits,
                requests,
                ahead or (0,) * len(requests),
                masks,
                adjustments=self._adjustments,
                previous=self._previous,
            )
            logits = adjusted.within(logits)
        tokens = self._choose(logits, requests, ahead)
        self._previous.keep(requests, tokens)
        return SampledTokens(tokens, None if adjusted is None else adjusted.logprobs(tokens))

    def _choose(
        self, logits: Tensor, requests: Sequence[Request], ahead: Sequence[int]
    ) -> Tensor:  # [rows]
        tokens = _likeliest(logits)
        drawn = [
            row
            for row, request in enumerate(requests)
            if request.sampling.temperature >= GREEDY_BELOW
        ]
        if drawn:
            rows = torch.tensor(drawn)
            picked = self._draw(
                logits[rows].float(),
                [requests[row] for row in drawn],
                [ahead[row] for row in drawn] if ahead else [0] * len(drawn),
            )
            tokens[rows] = torch.where(tokens[rows] == NOT_A_TOKEN, NOT_A_TOKEN, picked)
        return tokens

    def _draw(
        self, logits: Tensor, requests: Sequence[Request], ahead: Sequence[int]
    ) -> Tensor:  # [rows]
        def column(values: Sequence[float]) -> Tensor:  # [rows, 1]
            return torch.tensor(values, dtype=torch.float64).unsqueeze(1)

        draws = column(
            [
                uniform(seed_of(each, self._salt), len(each.token_ids) + coming)
                for each, coming in zip(requests, ahead, strict=True)
            ]
        )
        logits = logits / column([each.sampling.temperature for each in requests]).float()
        if any(each.sampling.min_p > 0 for each in requests):
            _drop_unlikely(logits, column([each.sampling.min_p for each in requests]).float())
        top_k = [each.sampling.top_k or logits.shape[-1] for each in requests]
        top_p = [each.sampling.top_p for each in requests]
        is_cut = [k < logits.shape[-1] or p < 1 for k, p in zip(top_k, top_p, strict=True)]
        if not any(is_cut):
            return _among_all(logits, draws)
        cut = torch.tensor([row for row, is_it in enumerate(is_cut) if is_it], dtype=torch.int64)
        whole = torch.tensor(
            [row for row, is_it in enumerate(is_cut) if not is_it], dtype=torch.int64
        )
        tokens = torch.empty(len(requests), dtype=torch.int64)
        if len(whole):
            tokens[whole] = _among_all(logits[whole], draws[whole])
        limits_k, limits_p = column(top_k), column(top_p)
        tokens[cut] = _among_best(logits[cut], limits_k[cut], limits_p[cut], draws[cut])
        return tokens


def _likeliest(logits: Tensor) -> Tensor:  # [rows, vocab] -> [rows]
    """Take the first of the largest logits, or `NOT_A_TOKEN` where they are not numbers.

    Compiled, it takes a quarter of torch's time: 0.10 ms for 16 rows of 49,152.
    """
    native = native_ops()
    if native is not None and logits.dtype != torch.float64:
        return native.likeliest(logits.float().contiguous())
    best, tokens = logits.max(dim=-1)
    return torch.where(best.isfinite(), tokens, NOT_A_TOKEN)


def _drop_unlikely(logits: Tensor, min_p: Tensor) -> None:  # [rows, vocab], [rows, 1]
    """Drop tokens whose probability is below `min_p` times that of the likeliest."""
    least = logits.amax(dim=-1, keepdim=True) + min_p.log()
    logits.masked_fill_(logits < least, -torch.inf)


def _among_all(logits: Tensor, draws: Tensor) -> Tensor:  # [rows, vocab], [rows, 1] -> [rows]
    """Draw from the whole vocabulary."""
    sums = logits.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    return _first_above(sums, draws * sums[:, -1:])


def _among_best(logits: Tensor, top_k: Tensor, top_p: Tensor, draws: Tensor) -> Tensor:
    """Draw from the `top_k` best that together have the probability `top_p`."""
    vocab = logits.shape[-1]
    weights = (logits - logits.amax(dim=-1, keepdim=True)).double().exp()
    # top-p counts of what top-k leaves; without top-k that is everything.
    everything = weights.sum(dim=-1, keepdim=True)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    open_rows = torch.arange(len(logits), device=logits.device)
    for count in (min(_FEW, vocab), vocab):
        best, ids = weights[open_rows].topk(count, dim=-1)
        sums = best.cumsum(dim=-1)
        limit_k = top_k[open_rows]
        of_k = torch.where(
            limit_k < count,
            sums.gather(1, (limit_k.long() - 1).clamp(max=count - 1)),
            torch.where(limit_k < vocab, sums[:, -1:], everything[open_rows]),
        )
        wanted = top_p[open_rows] * of_k
        is_enough = (limit_k <= count) | ((limit_k >= vocab) & (sums[:, -1:] >= wanted))
        is_enough = (is_enough | (count == vocab)).squeeze(1)
        # A candidate stays while those before it have not reached top-p, the best one always.
        stays = (sums - best < wanted) & (torch.arange(count, device=sums.device) < limit_k)
        stays[:, 0] = True
        kept = (best * stays).cumsum(dim=-1)
        picks = _first_above(kept, draws[open_rows] * kept[:, -1:])
        chosen = ids.gather(1, picks.unsqueeze(1)).squeeze(1)
        tokens[open_rows[is_enough]] = chosen[is_enough]
        open_rows = open_rows[~is_enough]
        if not len(open_rows):
            break
    return tokens


def _first_above(sums: Tensor, marks: Tensor) -> Tensor:  # [rows, n] ascending, [rows, 1] -> [rows]
    """Index of the first sum that is above the mark."""
    found = torch.searchsorted(sums, marks, right=True).squeeze(1)
    return found.clamp(max=sums.shape[-1] - 1)


def uniform(seed: int, position: int) -> float:
    """Return a number in (0, 1), the same for the same seed and position."""
    mixed = _mix(_mix(seed & _MASK) + position)
    return ((mixed >> 12) + 0.5) * 2.0**-52


def _mix(value: int) -> int:
    """Mix by SplitMix64: each bit of the result depends on each bit of the value."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
