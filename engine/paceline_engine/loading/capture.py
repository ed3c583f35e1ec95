"""CUDA graph capture before the first request, and the memory that is set aside for the graphs."""

import time
from collections.abc import Callable, Sequence

import torch

from paceline_engine.core.graph_sizes import decode_sizes, mixed_sizes
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.loading import memory
from paceline_engine.loading.measured_memory import bytes_of_graphs
from paceline_engine.profiling.mixed_choice import choose_sizes
from paceline_engine.profiling.mixed_probe import MixedProbe
from paceline_engine.profiling.step_timer import StepTimer
from paceline_engine.runner.graph_capture import CudaGraphCapture, GraphCapture, Replay
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Settings
from paceline_wire.limits import Capacity

Progress = Callable[[str, float], None]
"""Takes the stage and its fraction, 0 to 1."""

# The largest of each sort. The first takes the memory that all share; the driver gives memory in
# pieces of 2 MiB, so a few more say what one keeps.
_SAMPLED = 6


def uses_graphs(settings: Settings, device: torch.device) -> bool:
    """Tell whether graphs are captured: on a GPU, unless they are off."""
    return settings.graphs != "off" and device.type == "cuda"


def graphs_bytes(
    settings: Settings,
    config: ModelConfig,
    dtype: torch.dtype,
    *,
    beside: Sequence[ModelConfig] = (),
) -> int:
    """Estimate what graphs take beside weights and cache.

    For the models `beside` the first, decodes alone are captured.
    """
    rows, block_size = settings.max_batch_size, settings.block_size
    most_tokens = mixed_sizes(settings.max_token_budget)[-1]
    of_decodes = sum(
        memory.graph_bytes(each, rows, block_size, dtype) for each in (config, *beside)
    )
    return of_decodes + memory.mixed_bytes(config, rows, most_tokens, block_size, dtype)


def sampled_graph_bytes(
    runner: ModelRunner,
    capacity: Capacity,
    free_bytes: Callable[[], int],
    *,
    draft: ModelRunner | None = None,
    kinds: int = 1,
    new_capture: Callable[[], GraphCapture] | None = None,
) -> int:
    """Capture the largest graphs of each sort, and return what all of `capture_graphs` keep.

    `kinds`: how often each size of `runner` is captured, with adapters and without. The runners
    are of no use after.
    """
    new_capture = new_capture or (lambda: CudaGraphCapture(runner.device))
    decodes = decode_sizes(capacity.max_batch_size)
    sample = _SampledCapture(new_capture(), free_bytes)
    runner.capture_decodes(sample, decodes[-_SAMPLED:], _unheard)
    total = sample.bytes_of_all(len(decodes) * kinds)
    if draft is not None:
        sample = _SampledCapture(new_capture(), free_bytes)
        draft.capture_decodes(sample, decodes[-_SAMPLED:], _unheard)
        total += sample.bytes_of_all(len(decodes))
    mixed = mixed_sizes(capacity.max_token_budget)
    sample = _SampledCapture(new_capture(), free_bytes)
    runner.capture_mixed(sample, mixed[-_SAMPLED:], _unheard)
    return total + sample.bytes_of_all(len(mixed) * kinds)


class _SampledCapture:
    """Notes what is free before the first graph and after each. Implements `GraphCapture`."""

    def __init__(self, capture: GraphCapture, free_bytes: Callable[[], int]) -> None:
        self._capture = capture
        self._free_bytes = free_bytes
        self._free = [free_bytes()]

    def capture(self, compute: Callable[[], None]) -> Replay:
        """See `GraphCapture`."""
        replay = self._capture.capture(compute)
        self._free.append(self._free_bytes())
        return replay

    def bytes_of_all(self, num_graphs: int) -> int:
        """Return what so many graphs keep."""
        return bytes_of_graphs(self._free, num_graphs)


def _unheard(_fraction: float) -> None: ...


def capture_graphs(
    settings: Settings,
    runner: ModelRunner,
    capacity: Capacity,
    progress: Progress,
    *,
    is_first: bool = True,
    draft: ModelRunner | None = None,
    new_capture: Callable[[], GraphCapture] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Capture decodes, then mixed steps, where graphs of those are faster.

    A draft model drafts by decodes, one behind the other: these alone are captured for it.
    Every rank captures the same; the first one times, and tells the others what to keep.
    """
    new_capture = new_capture or (lambda: CudaGraphCapture(runner.device))

    def decodes(fraction: float) -> None:
        progress("capturing graphs", fraction)

    def mixed(fraction: float) -> None:
        progress("capturing mixed graphs", fraction)

    def drafts(fraction: float) -> None:
        progress("capturing the draft model", fraction)

    runner.capture_decodes(new_capture(), decode_sizes(capacity.max_batch_size), decodes)
    decodes(1.0)
    if draft is not None:
        draft.capture_decodes(new_capture(), decode_sizes(capacity.max_batch_size), drafts)
        drafts(1.0)
    # A capture of its own has memory of its own, which is free again where none is kept.
    sizes = mixed_sizes(capacity.max_token_budget)
    graphs = runner.capture_mixed(new_capture(), sizes, mixed)
    if not is_first:
        return
    overlap = settings.overlap != "off" and settings.can_overlap
    probe = MixedProbe(StepTimer(runner, capacity, clock, overlap=overlap), capacity)
    runner.keep_mixed(choose_sizes(graphs, probe.seconds_of, clock=clock))
    mixed(1.0)
