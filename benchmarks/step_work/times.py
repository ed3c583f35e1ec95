"""A model of a step's time from its launches: a prediction, never a measurement.

A launch takes `max(bytes / bandwidth, FLOPs / rate) + fixed`. Of its bandwidth or rate it reaches
what `assumed` says, less what its grid leaves idle in the last wave; a loop that streams reaches no
more than the bytes that it keeps in flight. Without a graph the host launches one after the other:
the step takes what the slower of the two takes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from paceline_kernels.dependent import LEAST_CAPABILITY
from paceline_testing.device_record import bytes_of
from step_work import assumed
from step_work.assumed import Assumed, End
from step_work.gpus import Gpu
from step_work.work import StepWork, Work

_TILES = ((128, 256, 1.0), (128, 128, 0.92), (64, 128, 0.75), (64, 64, 0.6))
"""Rows and columns of a product's tile, and what it reaches of the largest one's rate: a guess."""
_FEW_PARTS = 4
"""How many parts a library cuts a product's inputs into, at most, so that more programs run."""
_WIDE_HEADS = 128
_HOPPER = 9
_OWN_PRODUCTS = {"quantized_linear", "int4_linear", "expert_product"}
_FLASH = {"aten._scaled_dot_product_flash_attention"}
"""Attention that torch brings: FlashAttention 2."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A step's time in seconds, and the range that `assumed` gives it."""

    likely: float
    best: float
    worst: float

    def __str__(self) -> str:
        """Write it in milliseconds."""
        times = (f"{1e3 * each:.2f}" for each in (self.likely, self.best, self.worst))
        likely, best, worst = times
        return f"{likely} ms ({best} to {worst})"


@dataclass(frozen=True, slots=True)
class Parts:
    """What the likely time of a step in a graph consists of, in seconds."""

    sheet_s: float
    """Bytes, or FLOPs, at the rates of the data sheet."""
    reach_s: float
    """What more they take because launches reach a share of those."""
    gaps_s: float
    """From the end of a launch to where the next one streams."""
    replay_s: float
    """From the replay's call to the first kernel, and the tokens' way back."""

    def __str__(self) -> str:
        """Write them in milliseconds."""
        ms = (f"{1e3 * each:.2f}" for each in (self.sheet_s, self.reach_s, self.gaps_s))
        sheet, reach, gaps = ms
        return (
            f"{sheet} ms of bytes at the data sheet's rate, {reach} as a share of it is reached, "
            f"{gaps} between launches, {1e3 * self.replay_s:.2f} of the replay"
        )


def parts_of(work: StepWork, gpu: Gpu) -> Parts:
    """Split a step of decodes, of which the host launches next to nothing."""
    sheet_s = sum(
        max(one.num_bytes / gpu.bandwidth, one.flops / gpu.tensor_rate) for one in _on_device(work)
    )
    gaps_s = sum(_fixed_s(one, "likely") for one in _on_device(work))
    replay_s = assumed.GRAPH_REPLAY_S.likely
    return Parts(sheet_s, predict(work, gpu).likely - sheet_s - gaps_s - replay_s, gaps_s, replay_s)


def predict(
    work: StepWork, gpu: Gpu, leaves_out: Callable[[Work], bool] | None = None
) -> Predicted:
    """Predict a step's time, with some of its launches left out."""
    kept = tuple(one for one in work.launches if leaves_out is None or not leaves_out(one))
    return Predicted(
        _step_s(kept, gpu, "likely"), _step_s(kept, gpu, "best"), _step_s(kept, gpu, "worst")
    )


def tensor_share(work: StepWork, gpu: Gpu) -> Predicted:
    """Return the share of the data sheet's rate that the step's FLOPs take of its time."""
    times = predict(work, gpu)
    least_s = work.flops / gpu.tensor_rate
    return Predicted(least_s / times.likely, least_s / times.best, least_s / times.worst)


def launch_s(work: Work, gpu: Gpu, end: End) -> float:
    """Return how long the device takes for one launch."""
    if work.kind in {"sum of ranks", "tokens to ranks"}:
        by_peers = work.label.startswith("symm_mem")
        return (assumed.SUM_BY_PEERS_S if by_peers else assumed.SUM_BY_NCCL_S).at(end)
    moving = work.num_bytes / (gpu.bandwidth * bandwidth_share(work, gpu, end))
    if work.label == "row_product":
        moving = max(moving, cached_bytes(work) / (assumed.L2.at(end) * gpu.multiprocessors / 132))
    return max(moving, work.flops / flops_rate(work, gpu, end)) + _fixed_s(work, end)


def _fixed_s(work: Work, end: End) -> float:
    outside = 0.0 if work.in_graph else assumed.STREAM_LAUNCH_S.at(end)
    return assumed.LAUNCH_S.at(end) + outside


def _on_device(work: StepWork) -> list[Work]:
    return [one for one in work.launches if _is_on_device(one)]


def _is_on_device(work: Work) -> bool:
    return not work.label.endswith(("to cuda", "to cpu"))


def _step_s(launches: tuple[Work, ...], gpu: Gpu, end: End) -> float:
    device = [one for one in launches if _is_on_device(one)]
    device_s = sum(launch_s(one, gpu, end) for one in device)
    device_s -= sum(_hidden_s(*pair, gpu, end) for pair in pairwise(device))
    host_s = sum(_host_s(one, end) for one in launches)
    host_s += num_replays(launches) * assumed.HOST_GRAPH_S.at(end)
    return max(device_s + assumed.GRAPH_REPLAY_S.at(end), host_s)


def _hidden_s(before: Work, work: Work, gpu: Gpu, end: End) -> float:
    """Return how much of a dependent launch the one before it hides."""
    if not is_dependent(work) or gpu.capability < LEAST_CAPABILITY:
        return 0.0
    behind = assumed.DEPENDENT if is_dependent(before) else assumed.DEPENDENT_BEHIND_OTHERS
    return behind.at(end) * assumed.LAUNCH_S.at(end)


def is_dependent(work: Work) -> bool:
    """Tell whether a kernel may begin before the one before it has ended, and lets the next one."""
    return bool(work.launch.arguments.get("launch_pdl"))


def _host_s(work: Work, end: End) -> float:
    if work.in_graph:
        return 0.0
    of_kind: Assumed = assumed.HOST_KERNEL_S if work.kind == "kernel" else assumed.HOST_OP_S
    return of_kind.at(end)


def num_replays(launches: tuple[Work, ...]) -> int:
    """Count the graphs that are replayed: something is launched between any two."""
    return sum(after.in_graph and not one.in_graph for one, after in pairwise(launches))


def bandwidth_share(work: Work, gpu: Gpu, end: End) -> float:
    """Return the share of the bandwidth that a launch reaches."""
    if work.kind == "product" or work.label in _OWN_PRODUCTS:
        return assumed.WEIGHTS.at(end)
    if work.label == "row_product":
        full = min(1.0, _weights_in_flight(work) / _needed(gpu, end))
        return assumed.ROW_PRODUCT.at(end) * full
    share = assumed.STREAM.at(end)
    if work.label != "decode":
        return share
    return share * min(1.0, in_flight(work, gpu) / _needed(gpu, end)) * _evenness(work, gpu)


def cached_bytes(work: Work) -> int:
    """Return what a product of few rows takes out of the L2 cache: rows once for each tile."""
    rows: int = bytes_of(work.launch.arguments["x_ptr"])
    return work.num_bytes + rows * (work.launch.grid[0] - 1)


def _weights_in_flight(work: Work) -> int:
    """Return the bytes of the weight that all programs of a product keep under way."""
    given = work.launch.arguments
    halves = 2 if given["GATE"] else 1
    tile: int = halves * given["TILE_OUT"] * given["TILE_IN"] * given["x_ptr"].element_size()
    ahead: int = given["num_stages"] - 2
    return math.prod(work.launch.grid) * ahead * tile


def in_flight(work: Work, gpu: Gpu) -> int:
    """Return the bytes of keys and values that decode attention keeps under way, on all of a GPU.

    A loop of `num_stages` has a buffer less, of which it computes with one.
    """
    given = work.launch.arguments
    ahead: int = max(1, given["num_stages"] - 2)
    resident: int = math.prod(work.launch.grid) // given["num_multiprocessors"]
    return gpu.multiprocessors * resident * ahead * _tile_bytes(work)


def _tile_bytes(work: Work) -> int:
    """Return the keys and values of a step of decode attention's loop."""
    given = work.launch.arguments
    rows: int = given["TILE_KV"]
    columns: int = given["COLUMNS"]
    itemsize: int = given["k_cache_ptr"].element_size()
    return 2 * rows * columns * itemsize


def _needed(gpu: Gpu, end: End) -> float:
    return gpu.bandwidth * assumed.LATENCY_S.at(end)


def _evenness(work: Work, gpu: Gpu) -> float:
    """Return what a multiprocessor reads of a step, by what the one reads that reads most."""
    given = work.launch.arguments
    tokens: int = work.num_bytes // (2 * given["HEAD_SIZE"] * given["k_cache_ptr"].element_size())
    unit: int = given["UNIT"]
    units = tokens / unit / gpu.multiprocessors
    return units / math.ceil(units)


def flops_rate(work: Work, gpu: Gpu, end: End) -> float:
    """Return the FLOPs a second that a launch reaches."""
    if work.kind == "product":
        # Tensor cores multiply bytes twice as fast.
        codes = 2 if "_scaled_mm" in work.launch.name else 1
        return codes * gpu.matmul_rate * assumed.PRODUCT.at(end) * _tiled(work, gpu)
    if work.label in _OWN_PRODUCTS:
        return gpu.matmul_rate * assumed.OWN_PRODUCT.at(end)
    if work.label in _FLASH:
        flash = assumed.FLASH_2_ON_9 if gpu.capability[0] >= _HOPPER else assumed.PREFILL_MMA
        return gpu.tensor_rate * flash.at(end)
    if work.label != "prefill":
        return gpu.tensor_rate  # decode attention and the rest are bound by their bytes
    kind = {8: assumed.PREFILL_MMA, 9: assumed.PREFILL_WGMMA}.get(
        gpu.capability[0], assumed.PREFILL_TCGEN05
    )
    share = kind.at(end)
    if work.launch.arguments["HEAD_SIZE"] < _WIDE_HEADS:
        share *= assumed.NARROW_HEADS.at(end)
    programs = math.prod(work.launch.grid) / gpu.multiprocessors
    return gpu.tensor_rate * share * programs / math.ceil(programs)


def _tiled(work: Work, gpu: Gpu) -> float:
    """Return the share of its rate that a product reaches with the best of the tiles."""
    given = work.launch.arguments
    rows: int = given["rows"]
    outputs: int = given["outputs"]
    shares: list[float] = []
    for tile_rows, tile_columns, rate in _TILES:
        tiles = math.ceil(rows / tile_rows) * math.ceil(outputs / tile_columns)
        used = rows * outputs / (tiles * tile_rows * tile_columns)
        for parts in range(1, _FEW_PARTS + 1):
            waves = tiles * parts / gpu.multiprocessors
            shares.append(rate * used * waves / math.ceil(waves))
    return max(shares)
