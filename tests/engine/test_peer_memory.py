"""Sums through peer memory: which way a message takes, and that ranks never disagree or wait."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline_engine.loading import peer_sums
from paceline_engine.loading.memory_gauge import CudaGauge, Reading
from paceline_engine.loading.peer_sums import (
    NoPeerMemoryError,
    TorchPeerSource,
    WidestSum,
    share_memory,
)
from paceline_engine.model.group import Group
from paceline_engine.model.peer_memory import (
    WORTH_IT,
    PeerMemory,
    PeerOps,
    Way,
    Ways,
    cannot_share,
    fastest,
    ways_of,
)
from paceline_engine.runner.graph_capture import CudaGraphCapture, Replay
from paceline_testing.cuda_stand_ins import FakeGpu
from paceline_testing.fake_gpu_model import a_request, a_step, load_on_fake_gpu
from paceline_testing.ranks_alone import ranks_alone
from paceline_testing.tiny_model import SIZES, make_tiny_model

LAYERS: int = SIZES["num_hidden_layers"]
HIDDEN: int = SIZES["hidden_size"]
ONE_SHOT = "symm_mem.one_shot_all_reduce_out.default"
SECONDS = st.floats(1e-6, 1e-3)
WAYS: tuple[Way, ...] = ("library", "one_shot", "two_shot")
TIMES = st.dictionaries(
    st.integers(1, 1 << 24), st.fixed_dictionaries(dict.fromkeys(WAYS, SECONDS)), max_size=8
)
CPU = torch.device("cpu")


@settings(deadline=None)
@given(TIMES, st.integers(0, 1 << 25))
def test_a_message_takes_the_way_that_was_fastest(
    times: Mapping[int, Mapping[Way, float]], num_bytes: int
) -> None:
    """By the next larger size that was timed; beyond all, or where peers gain little, NCCL."""
    way = fastest(times).of(num_bytes)

    timed = min((size for size in times if size >= num_bytes), default=None)
    if timed is None:
        assert way == "library"
    elif way == "library":
        least = min(times[timed][each] for each in ("one_shot", "two_shot"))
        assert least > WORTH_IT * times[timed]["library"]
    else:
        assert times[timed][way] == min(times[timed].values())


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(1, 1 << 16))
def test_only_what_torchs_kernels_take_is_shared(ranks: int, row_bytes: int) -> None:
    """2, 4 and 8 ranks add up in one order; rows are read 16 bytes at a time."""
    takes = cannot_share(ranks, row_bytes, torch.bfloat16) is None

    assert takes == (ranks in {2, 4, 8} and row_bytes % 16 == 0)
    assert cannot_share(2, 16, torch.float16) == "torch.float16 is neither bfloat16 nor float32"


def test_two_shots_are_tried_where_they_read_less() -> None:
    """Between two ranks they read as much, and wait once more."""
    assert [ways_of(ranks) for ranks in (2, 4, 8)] == [
        ("one_shot",),
        ("one_shot", "two_shot"),
        ("one_shot", "two_shot"),
    ]


def test_the_choice_is_said_in_a_sentence() -> None:
    ways = Ways(((1024, "one_shot"), (2048, "one_shot"), (4096, "two_shot"), (8192, "library")))

    assert ways.sentence == "one shot up to 2 KiB, two shots up to 4 KiB, NCCL beyond"
    assert Ways(((1024, "library"),)).sentence == Ways().sentence == "NCCL always"


class Doubled:
    """Implements `PeerOps` for two ranks that hold the same."""

    def one_shot(self, place: Tensor, out: Tensor) -> None:
        """See `PeerOps`."""
        out.copy_(2 * place)

    def two_shot(self, place: Tensor, out: Tensor) -> None:
        """See `PeerOps`."""
        out.copy_(2 * place)


def _peers(most: int = 1 << 20) -> PeerMemory:
    return PeerMemory(torch.zeros(64), Doubled(), Ways(((most, "one_shot"),)))


def test_a_sum_outside_the_buffer_is_in_place() -> None:
    peers, x = _peers(), torch.arange(8.0).view(2, 4)

    summed = peers.sum_(x)

    assert summed is x
    assert x.flatten().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_sum_in_the_buffer_leaves_it_to_the_next() -> None:
    """The next message comes to the same place, so a result there would not last."""
    peers = _peers()
    place = peers.place((2, 4), torch.float32)
    assert place is not None
    place.fill_(3.0)

    summed = peers.sum_(place)
    place.zero_()

    assert summed is not None
    assert summed.unique().tolist() == [6.0]


@pytest.mark.parametrize(
    ("x", "most"),
    [
        (torch.zeros(5, 16), 1 << 20),
        (torch.zeros(2, 16, dtype=torch.bfloat16), 1 << 20),
        (torch.zeros(4, 2).t(), 1 << 20),
        (torch.zeros(0, 16), 1 << 20),
        (torch.zeros(2, 16), 64),
    ],
    ids=["wider than the buffer", "another type", "not contiguous", "no rows", "NCCL is faster"],
)
def test_other_messages_are_left_to_the_library(x: Tensor, most: int) -> None:
    assert _peers(most).sum_(x) is None


class Source:
    """Implements `PeerSource`, up to where it fails."""

    def __init__(self, fails_at: str = "") -> None:
        self.asked: list[str] = []
        self._fails_at = fails_at

    def require(self, device: torch.device, num_ranks: int) -> None:  # noqa: ARG002 - the port's
        """See `PeerSource`."""
        self._ask("require")

    def allocate(self, numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `PeerSource`."""
        self._ask("allocate")
        return torch.zeros(numbers, dtype=dtype, device=device)

    def meet(self, buffer: Tensor) -> PeerOps:  # noqa: ARG002 - the port's
        """See `PeerSource`."""
        self._ask("meet")
        return Doubled()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what == self._fails_at:
            raise NoPeerMemoryError(f"none to {what}")


def _shared(
    group: Group, source: Source, seconds: Sequence[float] = (2e-6, 1e-6), dtype: Any = None
) -> None:
    widest = WidestSum(8, 16, dtype or torch.float32, CPU)
    times = iter([[each] for each in seconds] * len(widest.sizes))

    def seconds_of(_one: Callable[[], object]) -> list[float]:
        return next(times)

    share_memory(group, widest, source, seconds_of)


@pytest.mark.parametrize("fails_at", ["require", "allocate", "meet"])
def test_nobody_goes_on_where_a_rank_cannot(fails_at: str) -> None:
    """The others would wait for it for ever: each step is agreed on before the next."""
    can_not, can = Source(fails_at), Source()
    for source, least in ((can_not, 1), (can, 0)):
        group = Group(0, 2)
        agreed = {"require": [], "allocate": [], "meet": [1]}[fails_at]
        answers = [*agreed, least and 0]
        with mock.patch.object(Group, "least", side_effect=answers):
            _shared(group, source)
        assert group.peers is None

    assert can_not.asked == ["require", "allocate", "meet"][: can_not.asked.index(fails_at) + 1]
    assert can.asked == ["require", "allocate", "meet"][: 3 if fails_at == "meet" else 2]


def test_the_slowest_ranks_times_count() -> None:
    """Every rank hears the same of them, so all choose the same; this one alone would not."""
    group = Group(1, 2)

    def least(_group: Group, value: int) -> int:
        return value if value >= 0 else min(value, -3000)  # the other rank took 3 us for all

    with mock.patch.object(Group, "least", least):
        _shared(group, Source(), (2e-6, 1e-6))

    assert group.peers is None


def test_what_peers_sum_faster_goes_through_them() -> None:
    group = Group(0, 2)

    with mock.patch.object(Group, "least", lambda _self, value: value):
        _shared(group, Source(), (2e-6, 1e-6))

    assert group.peers is not None
    assert group.peers.ways.of(8 * 16 * 4) == "one_shot"
    assert group.peers.ways.of(8 * 16 * 4 + 1) == "library"


def test_a_rank_alone_asks_for_nothing() -> None:
    source = Source()

    _shared(Group(), source)

    assert source.asked == []


def test_gpus_that_no_nvlink_joins_are_refused() -> None:
    """Ranks signal by atomics on each other's memory."""
    source, cuda = TorchPeerSource(), torch.device("cuda", 0)

    with (
        mock.patch.object(peer_sums, "_nvlinks", return_value=[[0, 6, 0], [6, 0, 0], [0, 0, 0]]),
    ):
        source.require(cuda, 2)
        with pytest.raises(NoPeerMemoryError, match="no NVLink joins GPU 0 and GPU 2"):
            source.require(cuda, 3)
    with pytest.raises(NoPeerMemoryError, match="torch cannot tell of NVLink"):
        source.require(cuda, 2)  # there is no driver here


def test_torch_has_the_ops() -> None:
    """Their order of arguments is no public promise."""
    ops = cast("Any", torch.ops.symm_mem)
    for op in (ops.one_shot_all_reduce_out, ops.two_shot_all_reduce_out):
        names = [argument.name for argument in op.default._schema.arguments]
        assert names[1:3] == ["reduce_op", "group_name"]
        assert names[3] in {"out", "output"}


def test_what_ranks_met_by_is_there_until_they_leave(tmp_path: Path) -> None:
    """NCCL meets at its first sum, symmetric memory after the weights: both by the same file."""
    group = Group(0, 1)
    group.start(_nobody, tmp_path, _anywhere)
    try:
        store = cast("Any", dist.distributed_c10d._get_default_store())
        store.set_timeout(timedelta(seconds=2))
        store.set("met", "again")

        assert store.get("met") == b"again"
    finally:
        group.leave()


def _nobody(_group: Group, _told: Path, _rendezvous: Path) -> None: ...


def _anywhere(_rank: int) -> Any:
    raise AssertionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama", head_dim=16)
    return folder


def test_products_leave_decodes_where_peers_read_them(folder: Path) -> None:
    """One launch a sum and no copy beside it; what is wider goes by NCCL, as before."""
    with ranks_alone(2, nvlink=True):
        model = load_on_fake_gpu(folder, num_gpus=2, tensor_parallel_size=2)
        requests = [a_request(0), a_request(1)]
        prompts = model.launches(a_step(prompts=requests))
        decodes = model.launches(a_step(requests))

    summed = [launch for launch in decodes if launch.kind == "sum of ranks"]
    assert [launch.name for launch in summed] == [ONE_SHOT] * 2 * LAYERS
    assert {launch.read for launch in summed} == {2 * HIDDEN * 2}
    names = [launch.name for launch in prompts if launch.kind == "sum of ranks"]
    # Of the last layer's rows only those that sample go on.
    assert names == ["c10d.allreduce_.default"] * (2 * LAYERS - 2) + [ONE_SHOT] * 2


def test_sums_through_peers_add_no_launch(folder: Path) -> None:
    """Beside the same step by NCCL: products of plain weights write where peers read."""
    kinds: list[list[str]] = []
    for nvlink in (False, True):
        with ranks_alone(2, nvlink=nvlink):
            model = load_on_fake_gpu(folder, num_gpus=2, tensor_parallel_size=2)
            requests = [a_request(0), a_request(1)]
            model.run(a_step(prompts=requests))
            kinds.append([launch.kind for launch in model.launches(a_step(requests))])

    assert kinds[0] == kinds[1]


def test_quantized_products_are_copied_there(folder: Path) -> None:
    """What they return is in memory of their own: a copy before each sum."""
    with ranks_alone(2, nvlink=True):
        model = load_on_fake_gpu(
            folder, num_gpus=2, tensor_parallel_size=2, quantization="fp8_dynamic"
        )
        requests = [a_request(0), a_request(1)]
        model.run(a_step(prompts=requests))
        decodes = model.launches(a_step(requests))

    before = [one.kind for one, after in itertools.pairwise(decodes) if after.name == ONE_SHOT]
    assert before == ["copy"] * 2 * LAYERS


def test_the_timed_sums_are_captured(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A capture refuses whatever waits; what was chosen by it is one line of the log."""
    captured: list[int] = []
    capture = CudaGraphCapture.capture

    def noted(of: CudaGraphCapture, compute: Callable[[], None]) -> Replay:
        captured.append(1)
        return capture(of, compute)

    with (
        ranks_alone(2, nvlink=True),
        mock.patch.object(CudaGraphCapture, "capture", noted),
        caplog.at_level("INFO"),
    ):
        load_on_fake_gpu(folder, num_gpus=2, tensor_parallel_size=2, graphs="auto")

    assert len(captured) >= 2 * len(WidestSum(8, HIDDEN, torch.bfloat16, CPU).sizes)
    told = [line for line in caplog.messages if line.startswith("ranks add up by")]
    assert len(told) == 1
    assert told[0].startswith("ranks add up by one shot up to 1 KiB, NCCL beyond; microseconds of")


def test_what_is_missing_is_said_in_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is served all the same."""
    with ranks_alone(2), caplog.at_level("INFO"):
        model = load_on_fake_gpu(folder, num_gpus=2, tensor_parallel_size=2)

    told = [line for line in caplog.messages if line.startswith("ranks add up by")]
    assert told == ["ranks add up by NCCL alone: no NVLink joins GPU 0 and GPU 1"]
    assert model.loaded.group.peers is None


def test_the_buffer_is_taken_before_memory_is_measured(folder: Path) -> None:
    """So the KV cache never has what a batch of rows takes there, here 200 MiB."""
    taken: list[int] = []
    empty, read = torch.empty, CudaGauge.read

    def take(numbers: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        taken.append(200 << 20)
        assert numbers == 8 * HIDDEN
        return empty(numbers, dtype=dtype, device=device)

    def less(gauge: CudaGauge) -> Reading:
        seen = read(gauge)
        return replace(seen, free_bytes=seen.free_bytes - sum(taken))

    asked: dict[str, Any] = {"kv_cache_bytes": None, "kv_cache_memory_fraction": 0.5}
    asked |= {"num_gpus": 2, "tensor_parallel_size": 2, "gpu": FakeGpu(total_memory=1 << 30)}
    blocks: list[int] = []
    for nvlink in (False, True):
        with (
            ranks_alone(2, nvlink=nvlink),
            mock.patch.object(symmetric_memory, "empty", take),
            mock.patch.object(CudaGauge, "read", less),
        ):
            loaded = load_on_fake_gpu(folder, **asked).loaded
            blocks.append(loaded.capacity.num_blocks)

    # A rank holds half of a block's heads.
    a_block = loaded.info.kv_bytes_per_token * 8
    assert (blocks[0] - blocks[1]) * a_block == pytest.approx(200 << 20, abs=a_block)
