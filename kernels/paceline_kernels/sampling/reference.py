"""The sampler in plain torch, with a sort, in float64: the ground truth.

It looks at no value on the host, so that on a GPU nobody would wait for it.
"""

import torch
from torch import Tensor
from torch.nn import functional

NOT_A_TOKEN = -1
"""In place of a token: the logits of the row are not numbers."""

_GROUP = 128
_GROUP_STREAM = 1 << 31
_MIN_TEMPERATURE = 1e-4
_32_BITS = (1 << 32) - 1


def sample_tokens(
    logits: Tensor,  # [rows, vocab]
    seeds: Tensor,  # [rows] int64
    positions: Tensor,  # [rows] int64
    temperatures: Tensor,  # [rows] float32; below 1e-4 greedy
    top_k: Tensor,  # [rows] int32; 0 keeps all
    top_p: Tensor,  # [rows] float32; 1 keeps all
    min_p: Tensor,  # [rows] float32; 0 keeps all
    *,
    out: Tensor | None = None,  # [rows] int64
) -> Tensor:  # [rows] int64
    """Choose a token of each row by its own logits, seed and position, whatever is beside it.

    Greedy rows take the first of the largest logits. Others are cut by min-p, then top-k, then
    top-p of what is left, equal logits in the order of their places, and drawn from. A row that
    holds NaN or infinity, or nothing but -infinity, gives `NOT_A_TOKEN`. `out` takes the tokens.
    """
    wide = logits.double()
    is_kept = kept(wide, temperatures, top_k, top_p, min_p)
    is_greedy = ~(temperatures >= _MIN_TEMPERATURE)
    best = wide.amax(dim=-1)
    greedy = (wide == best.unsqueeze(1)).int().argmax(dim=-1)
    scaled = (wide - best.unsqueeze(1)) / temperatures.double().clamp(min=_MIN_TEMPERATURE)[:, None]
    drawn = draw(scaled.masked_fill(~is_kept, -torch.inf), seeds, positions)
    tokens = torch.where(is_greedy, greedy, drawn)
    is_broken = ~best.isfinite()  # NaN is the largest of all
    tokens = torch.where(is_broken, NOT_A_TOKEN, tokens)
    return tokens if out is None else out.copy_(tokens)


def kept(
    logits: Tensor, temperatures: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:  # [rows, vocab] of bool
    """What a draw may take."""
    vocab = logits.shape[-1]
    ordered, columns = logits.sort(dim=-1, descending=True, stable=True)
    scale = temperatures.double().clamp(min=_MIN_TEMPERATURE).unsqueeze(1)
    # As the kernel has it: whatever is at least as large as this number of float32.
    floor = ordered[:, :1] + scale * min_p.double().log().unsqueeze(1)
    stays = (ordered >= floor.float()) & (ordered > -torch.inf)
    k = torch.where(top_k > 0, top_k, vocab).unsqueeze(1)
    stays &= torch.arange(vocab, device=logits.device) < k
    weights = ((ordered - ordered[:, :1]) / scale).exp() * stays
    before = weights.cumsum(dim=-1) - weights
    wanted = top_p.double().unsqueeze(1) * weights.sum(dim=-1, keepdim=True)
    stays &= (before < wanted) | (top_p >= 1).unsqueeze(1)
    stays[:, 0] = True
    return torch.zeros_like(stays).scatter(1, columns, stays)


def draw(scaled: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:  # [rows, vocab], -> [rows]
    """Draw a group by its mass, then a token of it, each by the largest with Gumbel noise."""
    rows, vocab = scaled.shape
    keys = _row_keys(seeds, positions)
    groups = functional.pad(scaled, (0, -vocab % _GROUP), value=-torch.inf)
    groups = groups.view(rows, -1, _GROUP)
    places = torch.arange(groups.shape[1], device=scaled.device)
    scores = groups.logsumexp(dim=-1) + gumbel(keys, places + _GROUP_STREAM)
    group = scores.argmax(dim=-1)
    columns = group.unsqueeze(1) * _GROUP + torch.arange(_GROUP, device=scaled.device)
    within = groups.gather(1, group.view(rows, 1, 1).expand(-1, 1, _GROUP)).squeeze(1)
    return columns[:, 0] + (within + gumbel(keys, columns)).argmax(dim=-1)


def gumbel(keys: Tensor, indices: Tensor) -> Tensor:  # [rows], [n] or [rows, n] -> [rows, n]
    """-log(E), with E exponential of rate 1, in float64."""
    low, high = (keys & _32_BITS).unsqueeze(1), _shifted(keys, 32).unsqueeze(1)
    bits = _mix32(_mix32((indices & _32_BITS) ^ low) ^ high)
    v = ((bits.float().double() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -(-torch.log1p(-v)).log()


def _row_keys(seeds: Tensor, positions: Tensor) -> Tensor:  # [rows] of 64 bits
    return _mix64(_mix64(seeds) + positions)


def _mix64(value: Tensor) -> Tensor:
    """SplitMix64; products and sums of int64 wrap around, as they should."""
    value = value + (0x9E3779B97F4A7C15 - (1 << 64))
    value = (value ^ _shifted(value, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    value = (value ^ _shifted(value, 27)) * (0x94D049BB133111EB - (1 << 64))
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, count: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def _mix32(value: Tensor) -> Tensor:  # int64 in [0, 2 ** 32)
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & _32_BITS
    value = ((value ^ (value >> 15)) * 0x846CA68B) & _32_BITS
    return value ^ (value >> 16)


def penalise(
    scores: Tensor,  # [rows, vocab], changed in place
    ids: Tensor,  # [n] int32: the distinct tokens of each row, row after row
    counts: Tensor,  # [n] int32: how often the row's output holds each; 0 of the prompt alone
    starts: Tensor,  # [rows + 1] int32: those of a row are [starts[row], starts[row + 1])
    arriving: Tensor,  # [rows] int64: one token more, which may be among them; -1: none
    repetition: Tensor,  # [rows] float32, as are the next
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """Lower what was met before; returns `scores`.

    `score / repetition`, or times it where negative; then `frequency` for each time that the output
    holds the token, and `presence` once if it does (CTRL's rule, and that of OpenAI's API).
    """
    places = torch.arange(len(scores), device=scores.device)
    rows = torch.repeat_interleave(places, starts.diff(), output_size=len(ids))
    is_arriving = ids == arriving[rows]
    is_known = torch.zeros_like(arriving).index_add(0, rows, is_arriving.long()) > 0

    def penalised(score: Tensor, count: Tensor, row: Tensor) -> Tensor:
        factor = repetition[row]
        score = torch.where(score > 0, score / factor, score * factor)
        return score - frequency[row] * count - presence[row] * (count > 0)

    at = (rows, ids.long())
    scores[at] = penalised(scores[at], counts + is_arriving, rows).to(scores.dtype)
    at = (places, arriving.clamp(min=0))
    once = penalised(scores[at], torch.ones_like(arriving), places).to(scores.dtype)
    scores[at] = torch.where(is_known | (arriving < 0), scores[at], once)
    return scores


def forbid(
    scores: Tensor,  # [rows, vocab], changed in place
    rows: Tensor,  # [masks] int64
    words: Tensor,  # [masks, vocab / 32 or more] int32: a bit a token, the lowest first
) -> Tensor:
    """Write -inf over the tokens whose bit is 0; returns `scores`."""
    bits = torch.arange(32, dtype=torch.int32, device=words.device)
    is_allowed = ((words.unsqueeze(-1) >> bits) & 1).bool().flatten(1)[:, : scores.shape[1]]
    scores[rows] = torch.where(is_allowed, scores[rows], -torch.inf)
    return scores


def token_likelihoods(
    logits: Tensor,  # [rows, vocab]
    tokens: Tensor,  # [rows] int64; below 0 taken as 0
    num_top: int,
) -> Tensor:  # [rows, 2 + 2 * num_top], float32 or wider
    """Return the likelihood of a token of each row, and of the row's `num_top` likeliest ones.

    The token's log-probability `logit - log(sum(exp(logits)))`, its rank from 1, the best
    log-probabilities, best first, and their ids: whole numbers up to 2 ** 24 are exact.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    chosen = wide.gather(1, tokens.clamp(min=0).unsqueeze(1))
    top, top_ids = wide.topk(num_top, dim=-1)
    normaliser = wide.logsumexp(dim=-1, keepdim=True)
    ranks = (wide > chosen).sum(dim=-1, keepdim=True) + 1
    parts = (chosen - normaliser, ranks, top - normaliser, top_ids)
    return torch.cat([part.to(wide.dtype) for part in parts], dim=1)
