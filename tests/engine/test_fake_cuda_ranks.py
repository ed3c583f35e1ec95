"""Ranks on GPUs that are not there: what a step tells, launches and waits for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from paceline_engine.core.batch import Batch
from paceline_engine.core.step_tensors import Int64s
from paceline_engine.engine.engine import EngineOptions
from paceline_engine.runner.told_step import ToldStep, decode
from paceline_testing.device_record import Launch
from paceline_testing.fake_gpu_model import FakeGpuModel, a_request, a_step, load_on_fake_gpu
from paceline_testing.ranks_alone import ranks_alone
from paceline_testing.tiny_engine import serve
from paceline_testing.tiny_model import SIZES, make_tiny_model

LAYERS: int = SIZES["num_hidden_layers"]
MEETINGS = {"sum of ranks", "tokens to ranks"}
TWO: dict[str, Any] = {"num_gpus": 2, "tensor_parallel_size": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model for all tests."""
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama", head_dim=16)
    return folder


@pytest.fixture(autouse=True)
def _nothing_is_pickled_for_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("an object was sent")

    for name in ("broadcast_object_list", "send_object_list", "scatter_object_list"):
        monkeypatch.setattr(dist, name, refused)


def meetings(launches: Sequence[Launch]) -> list[tuple[str, int]]:
    """Where the ranks meet, and over how many bytes."""
    return [(each.kind, each.written) for each in launches if each.kind in MEETINGS]


def _mode(message: Int64s | None) -> str:
    assert message is not None
    told = decode(message)
    assert isinstance(told, ToldStep)
    return told.mode


def test_op_by_op_ranks_sum_twice_a_layer(folder: Path) -> None:
    """And share the tokens that lie on the first one's device; nothing else crosses."""
    with ranks_alone(2) as told:
        model = load_on_fake_gpu(folder, **TWO)
        requests = [a_request(0), a_request(1)]
        prompts = model.launches(a_step(prompts=requests))
        told.clear()
        for request in requests:
            request.token_ids.append(5)
        launches = model.launches(a_step(requests))

    assert [kind for kind, _ in meetings(prompts)] == ["sum of ranks"] * (2 * LAYERS)
    assert [kind for kind, _ in meetings(launches)] == [
        "tokens to ranks",
        *["sum of ranks"] * (2 * LAYERS),
    ]
    assert [_mode(message) for message in told] == ["eager"]


def _captured(folder: Path) -> FakeGpuModel:
    return load_on_fake_gpu(folder, graphs="on", **TWO)


def _of_one(folder: Path, batch: Batch) -> list[str]:
    """Return what a step of decodes is where one GPU does all of it."""
    model = load_on_fake_gpu(folder, graphs="on")
    model.run(a_step(prompts=[chunk.request for chunk in batch.chunks]))
    return [launch.name for launch in model.launches(batch)]


def test_a_step_of_decodes_is_one_message_and_one_graph(folder: Path) -> None:
    """Beside what one GPU does there are two sums a layer, and the tokens; all in the graph.

    The host waits where it waits with one GPU: for a buffer of two steps before, and the tokens.
    """
    requests = [a_request(0), a_request(1)]
    with ranks_alone(2) as told:
        model = _captured(folder)
        model.run(a_step(prompts=requests))
        told.clear()
        launches = model.launches(a_step(requests))
        waits = list(model.fake.record.waits)

    assert [_mode(message) for message in told] == ["decode graph"]
    assert waits == ["Event.synchronize"] * 2
    assert all(each.in_graph for each in launches if each.kind in MEETINGS)
    assert [kind for kind, _ in meetings(launches)] == [
        "tokens to ranks",
        *["sum of ranks"] * (2 * LAYERS),
    ]
    alone = _of_one(folder, a_step([a_request(0), a_request(1)]))
    assert [each.name for each in launches if each.kind not in MEETINGS] == alone


def test_a_rank_that_follows_replays_and_samples_nothing(folder: Path) -> None:
    """One copy to its device, then its graph; it waits for no token, and for no other host."""
    requests = [a_request(0), a_request(1)]
    with ranks_alone(2) as told:
        first = _captured(folder)
        started = list(told)
        first.run(a_step(prompts=requests))
        first.run(a_step(requests))
        *_, last = told
    with ranks_alone(2, rank=1, heard=[*started, None, last]):
        other = load_on_fake_gpu(folder, rank=1, graphs="on", **TWO)
        record = other.fake.record
        with other.fake.visible():
            other.loaded.runner.follow()
            record.clear()
            other.loaded.runner.follow()

    replayed = [launch for launch in record.launches if launch.in_graph]
    others = [launch.name for launch in record.launches if not launch.in_graph]
    assert others == ["cpu to cuda"]
    assert record.waits == ["Event.synchronize"]
    assert [kind for kind, _ in meetings(replayed)] == [
        "tokens to ranks",
        *["sum of ranks"] * (2 * LAYERS),
    ]
    assert not any("sample" in launch.name for launch in replayed)
    assert other.loaded.runner.device == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("graphs", "nvlink"), [("off", False), ("on", True)], ids=["op by op", "graphs, peer memory"]
)
def test_ranks_meet_in_one_order_from_start_to_end(
    folder: Path, graphs: str, *, nvlink: bool
) -> None:
    """From the trial of memory on, through captures, timed steps and requests that overlap.

    A rank that met over other bytes, or once more or less, would hang both.
    """
    with ranks_alone(2, nvlink=nvlink) as told:
        first = load_on_fake_gpu(folder, graphs=graphs, **TWO)
        with first.fake.visible():
            lengths = {"a": 20, "b": 50, "c": 3}
            outputs = serve(first.loaded, EngineOptions(overlap=True), lengths)
        first.loaded.group.end()
    with ranks_alone(2, rank=1, nvlink=nvlink, heard=told):
        other = load_on_fake_gpu(folder, rank=1, graphs=graphs, **TWO)
        with other.fake.visible():
            other.loaded.runner.follow()

    assert {name: len(tokens) for name, tokens in outputs.items()} == dict.fromkeys("abc", 5)
    mine, others = (meetings(each.fake.record.launches) for each in (first, other))
    assert len(mine) > 100
    assert others == mine


def test_graphs_are_given_up_before_the_connections(folder: Path) -> None:
    """NCCL's end would wait for them."""
    with ranks_alone(2):
        model = _captured(folder)
        runner = model.loaded.runner
        assert runner._decode_graphs is not None

        model.loaded.group.leave()
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())

    assert runner._decode_graphs is None
    assert runner._mixed is None
