"""Which back end attends for a step's prompts: what was measured at start, or what was set."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from paceline_engine.errors import BadSettings
from paceline_engine.model.config import ModelConfig
from paceline_engine.running.prefill.attention import (
    Cache,
    Chunk,
    PagedPrefill,
    PrefillAttention,
    Prompts,
    Scores,
)
from paceline_engine.running.prefill.sdpa import SdpaPrefill
from paceline_engine.settings import PrefillSetting

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Of prompts that are measured: classes, each up to the next."""
STEP_TOKENS = 2048
"""In a measured step: shorter prompts come together, as they do in a step."""
WORTH_IT = 0.95
"""Of our own kernel's time: less gain is noise."""
_REPEATS = 5
_PROBE_TOKENS = 16

SecondsOf = Callable[[Callable[[], object]], float]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    """Another back end for some lengths of prompts, ours for all else."""

    by_length: Mapping[int, PrefillAttention] = field(default_factory=dict)
    """By the shortest mean length of a step's prompts from which it serves."""
    ours: PrefillAttention = field(default_factory=PagedPrefill)

    def of_step(self, chunks: tuple[Chunk, ...]) -> PrefillAttention:
        """Choose by the mean length of the prompts, among those that can serve them."""
        if not chunks:
            return self.ours
        mean = sum(chunk.tokens for chunk in chunks) / len(chunks)
        least = max((length for length in self.by_length if length <= mean), default=None)
        found = self.ours if least is None else self.by_length[least]
        return found if found.serves(chunks) else self.ours


def choose(
    setting: PrefillSetting,
    config: ModelConfig,
    cache: Cache,
    max_tokens: int,
    *,
    seconds_of: SecondsOf | None = None,
) -> PrefillChoice:
    """Decide for a model's layers, on the device of its cache; measured where it is `auto`.

    `max_tokens` is the longest prompt of a step. Nothing is written to the cache. Raises
    BadSettings where `sdpa` is set and serves no layer, or torch has none for such heads.
    """
    other = SdpaPrefill()
    layers = (Scores(config.score_scale, w, config.attention_softcap) for w in set(config.windows))
    scores = next((one for one in layers if other.serves_layer(cache, one)), None)
    if setting == "sdpa":
        _require(other, config, cache, scores)
        return PrefillChoice({0: other})
    if setting == "triton" or scores is None:
        return PrefillChoice()
    return _measured(
        other, config, cache, scores, max_tokens=max_tokens, seconds_of=seconds_of or _on_device
    )


def _require(
    other: PrefillAttention, config: ModelConfig, cache: Cache, scores: Scores | None
) -> None:
    if scores is None:
        raise BadSettings(
            "PACELINE_ENGINE_PREFILL_ATTENTION is sdpa, but every layer of the model has a window "
            "or a soft cap, which torch's fast attention has not got."
        )
    prompts, q = _step(config, cache, 1, _PROBE_TOKENS)
    try:
        other(q, cache, prompts, scores)
    except RuntimeError as error:
        raise BadSettings(
            "PACELINE_ENGINE_PREFILL_ATTENTION is sdpa, but torch has no fast attention here for "
            f"{config.num_q_heads} heads of {config.head_size} over {config.num_kv_heads} in "
            f"{str(q.dtype).removeprefix('torch.')}."
        ) from error


def _measured(
    other: PrefillAttention,
    config: ModelConfig,
    cache: Cache,
    scores: Scores,
    *,
    max_tokens: int,
    seconds_of: SecondsOf,
) -> PrefillChoice:
    ours = PagedPrefill()
    by_length: dict[int, PrefillAttention] = {}
    most = min(max_tokens, cache.keys.shape[0] * cache.keys.shape[1])
    for length in (length for length in LENGTHS if length <= most):
        prompts, q = _step(config, cache, max(1, min(STEP_TOKENS, most) // length), length)

        def run(back_end: PrefillAttention, q: Tensor = q, prompts: Prompts = prompts) -> float:
            return seconds_of(lambda: back_end(q, cache, prompts, scores))

        try:
            is_worth_it = run(other) < WORTH_IT * run(ours)
        except RuntimeError as error:  # torch has none for these heads: nothing is lost
            _log.info("prompts by %s: %s", ours.name, str(error).partition("\n")[0])
            return PrefillChoice()
        by_length[length] = other if is_worth_it else ours
    found = [str(length) for length, back_end in by_length.items() if back_end is other]
    _log.info("prompts by %s, from lengths of: %s", other.name, ", ".join(found) or "none")
    return PrefillChoice(by_length)


def _step(config: ModelConfig, cache: Cache, count: int, length: int) -> tuple[Prompts, Tensor]:
    """Make prompts over the first blocks of the cache, whatever lies there, and their queries."""
    device, block_size = cache.keys.device, cache.keys.shape[1]
    num_blocks = -(-length // block_size)
    table = torch.arange(count * num_blocks, dtype=torch.int32, device=device)
    table = (table % len(cache.keys)).view(count, num_blocks)
    lens = torch.full((count,), length, dtype=torch.int32, device=device)
    starts = torch.arange(count + 1, dtype=torch.int32, device=device) * length
    token = torch.arange(length, device=device)
    slots = table[:, token // block_size].long() * block_size + token % block_size
    prompts = Prompts(
        (Chunk(length, length),) * count, table, starts, lens, slots.flatten(), block_size
    )
    q = torch.zeros(
        count * length,
        config.num_q_heads,
        config.head_size,
        dtype=cache.keys.dtype,
        device=device,
    )
    return prompts, q


def _on_device(run: Callable[[], object]) -> float:
    """Median time of a call on the GPU, behind one that compiles and warms up."""
    run()
    times_ms: list[float] = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    return median(times_ms) / 1e3
