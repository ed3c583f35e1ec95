"""Chooses which ops small decode steps fuse: as set, or by trials and timings at start.

Each plan is captured as graphs will be, over all layers, so that no weight is in a cache when its
turn comes, and replayed in turn with the others.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.linalg import vector_norm

from paceline_engine.loading.capture import uses_graphs
from paceline_engine.model.decoder import Decoder, DecoderStages
from paceline_engine.model.group import Group
from paceline_engine.model.row_stages import (
    Fusions,
    RowProducts,
    RowStages,
    counters,
    everything_fused,
    possible_plans,
)
from paceline_engine.runner.graph_capture import CudaGraphCapture, GraphCapture, Replay
from paceline_engine.settings import RowProductSetting, Settings

WORTH_IT = 0.98
"""Share of the separate ops' time that a plan may take: a smaller gain is noise."""
CLASSES = (16, 64, 128)
"""Most rows of each class that is timed: for each the kernel has a variant of its own."""
TOLERANCE = 4
"""How many roundings of the dtype a row may differ by, relative to its norm."""
_ROUNDS = 5

_log = logging.getLogger(__name__)

SecondsOf = Callable[[Replay], float]
"""Returns the time of one replay."""


def choose_row_products(
    setting: RowProductSetting,
    decoder: Decoder,
    max_batch_size: int,
    new_capture: Callable[[], GraphCapture],
    *,
    seconds_of: SecondsOf,
) -> RowProducts | None:
    """Decide for each class of rows; None where nothing is fused."""
    if setting == "off" or len(decoder.layers) < 2:  # noqa: PLR2004 - nothing lies between
        return None
    if setting == "on":
        return everything_fused(decoder)
    candidates = possible_plans(decoder)
    if decoder.embedding.dtype not in (torch.float16, torch.bfloat16) or not candidates:
        return None
    arrived, plans = counters(decoder), {}
    for least, most in zip((1, *(size + 1 for size in CLASSES)), CLASSES, strict=False):
        if least > max_batch_size:
            break
        rows = min(most, max_batch_size)
        with torch.inference_mode():
            replays = _captured(decoder, candidates, arrived, rows, new_capture())
            plans[most] = _fastest(replays, seconds_of)
    chosen = RowProducts(plans, arrived)
    shown = ", ".join(f"{most}: {'+'.join(sorted(plan)) or 'no'}" for most, plan in plans.items())
    _log.info("decodes of up to so many rows fuse norms, gates and sums into products: %s", shown)
    return chosen if any(plans.values()) else None


def _captured(
    decoder: Decoder,
    candidates: Sequence[Fusions],
    arrived: Tensor,
    rows: int,
    capture: GraphCapture,
) -> dict[Fusions, Replay]:
    """Capture the separate ops, and each plan that agrees with them."""
    config, like = decoder.config, decoder.embedding
    attended = torch.randn(
        rows, config.num_q_heads * config.head_size, dtype=like.dtype, device=like.device
    )
    residual = torch.randn(rows, config.hidden_size, dtype=like.dtype, device=like.device)
    replays: dict[Fusions, Replay] = {
        frozenset(): capture.capture(partial(_run, decoder, decoder, attended, residual))
    }
    for plan in candidates:
        stages = RowStages(decoder, plan, arrived)
        if (fault := _fault(decoder, stages, attended, residual)) is not None:
            _log.warning("products of %d rows without %s: %s", rows, "+".join(plan), fault)
            continue
        compute = partial(_run, decoder, stages, attended, residual)
        replays[plan] = capture.capture(compute)
    return replays


def _fastest(replays: Mapping[Fusions, Replay], seconds_of: SecondsOf) -> Fusions:
    """Time each plan in turn with the others, and choose one."""
    times: dict[Fusions, list[float]] = {plan: [] for plan in replays}
    for number in range(_ROUNDS + 1):
        for plan, replay in replays.items():
            took = seconds_of(replay)
            if number:  # the first round is a warm-up
                times[plan].append(took)
    return fastest_of({plan: median(each) for plan, each in times.items()})


def fastest_of(seconds: Mapping[Fusions, float]) -> Fusions:
    """Return the plan that takes the least time; none where that is not clearly less."""
    best = min(seconds, key=lambda plan: seconds[plan])
    return best if seconds[best] <= WORTH_IT * seconds[frozenset()] else frozenset()


def _run(decoder: Decoder, stages: DecoderStages, attended: Tensor, residual: Tensor) -> None:
    """Go through the layers without their attentions."""
    for index in range(len(decoder.layers) - 1):
        stages.between(index, attended, residual)


def _fault(decoder: Decoder, stages: RowStages, attended: Tensor, residual: Tensor) -> str | None:
    """Compare a layer with the separate ops; return None where they agree."""
    limit = TOLERANCE * torch.finfo(residual.dtype).eps
    try:
        seen = stages.between(0, attended, residual)
        wanted = decoder.between(0, attended, residual)
        differs = [_difference(*pair) for pair in zip(seen, wanted, strict=True)]
    except Exception as error:  # noqa: BLE001 - whatever it is, the separate ops serve
        return f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    for name, worst in zip(("qkv", "residual"), differs, strict=True):
        if not worst <= limit:  # NaN as well
            return f"a row of {name} differs by {worst:.2g} of its length, at most {limit:.2g}"
    return None


def _difference(seen: Tensor, wanted: Tensor) -> float:
    """Return the largest difference of a row, as a share of its length."""
    exact = wanted.float()
    share = vector_norm(seen.float() - exact, dim=-1) / vector_norm(exact, dim=-1)
    return float(share.max())


def on_device(replay: Replay) -> float:
    """Return the time of a replay on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    end.record()
    end.synchronize()
    elapsed_ms: float = start.elapsed_time(end)
    return elapsed_ms / 1e3


def with_row_products(
    settings: Settings, decoder: Decoder, device: torch.device, group: Group
) -> Decoder:
    """Give a decoder what its decodes of few rows fuse; on a GPU, of one rank, in graphs."""
    setting = settings.row_products
    if setting == "auto" and not uses_graphs(settings, device):
        return decoder
    if device.type != "cuda" or group.size > 1:
        return decoder
    chosen = choose_row_products(
        setting,
        decoder,
        settings.max_batch_size,
        lambda: CudaGraphCapture(device),
        seconds_of=on_device,
    )
    if setting == "auto":
        torch.cuda.empty_cache()
    return replace(decoder, few_rows=chosen)
