"""A tiny model on a GPU that is not there, loaded as the engine loads any, and steps for it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.uri import Located
from paceline_engine.core.batch import Batch, ScheduledChunk, StepOutput
from paceline_engine.core.request import Request
from paceline_engine.hardware.cores_reader import read_share
from paceline_engine.loading.dtype import DtypeChoice
from paceline_engine.loading.load import LoadedModel, load_checkpoint, load_model
from paceline_engine.model.group import Group
from paceline_engine.profiling import mixed_choice, mixed_probe
from paceline_engine.settings import Settings
from paceline_testing.cuda_stand_ins import FakeGpu
from paceline_testing.device_record import Launch
from paceline_testing.fake_cuda import FakeCuda
from paceline_wire import Sampling

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class FakeGpuModel:
    """A loaded model, and the device that it lies on."""

    fake: FakeCuda
    loaded: LoadedModel

    def run(self, batch: Batch) -> StepOutput:
        """Compute a step and fetch what it gives; hidden waits raise."""
        with self.fake.visible():
            return self.loaded.runner.launch(batch).result()

    def launches(self, batch: Batch) -> list[Launch]:
        """Return what a step gives the device to do, until the host has its tokens."""
        self.fake.record.clear()
        self.run(batch)
        return list(self.fake.record.launches)


def load_on_fake_gpu(
    folder: Path,
    *,
    num_gpus: int = 1,
    rank: int = 0,
    gpu: FakeGpu | None = None,
    **settings: Any,
) -> FakeGpuModel:
    """Load the model of a folder, warmed up, with its graphs where the settings say so."""
    asked = {
        "model_uri": f"file://{folder}",
        "device": "cuda",
        "dtype": "bfloat16",
        "threads": 1,
        "block_size": BLOCK_SIZE,
        "max_batch_size": 8,
        "max_token_budget": 64,
        "kv_cache_bytes": 1 << 22,
        "prefill_attention": "triton",
        "row_products": "off",
        "graphs": "off",
        **settings,
    }
    fake = FakeCuda(gpu, num_gpus=num_gpus)
    with fake.visible(), fake.loading(), _briefly_timed():
        return FakeGpuModel(fake, _loaded(folder, Settings.model_validate(asked), rank))


def _loaded(folder: Path, settings: Settings, rank: int) -> LoadedModel:
    if rank == 0:
        return load_model(settings, _unheard)
    return load_checkpoint(
        settings,
        Located(folder.name, folder, revision=""),
        open_checkpoint(folder),
        Group(rank, settings.tensor_parallel_size),
        _unheard,
        share=read_share(),
        dtype=DtypeChoice("bfloat16", "as rank 0 says"),
    )


@contextmanager
def _briefly_timed() -> Iterator[None]:
    """Time mixed steps by one of each way, and keep no graph of them: no time means anything here.

    Else it would be chance how a step with prompts is computed. A test that wants its graph
    captures it.
    """
    with (
        mock.patch.object(mixed_choice, "_ROUNDS", 1),
        mock.patch.object(mixed_probe, "_STEPS", 1),
        mock.patch.object(mixed_choice, "worth_it", return_value=()),
    ):
        yield


def _unheard(_stage: str, _fraction: float) -> None: ...


def a_request(row: int, num_tokens: int = 20, *, slot: int | None = None, **asked: Any) -> Request:
    """Hold a row, and blocks of its own."""
    request = Request(
        id=f"request {row}",
        token_ids=list(range(3, 3 + num_tokens)),
        num_prompt_tokens=num_tokens,
        sampling=Sampling(**{"max_tokens": 99, "temperature": 0.0, **asked}),
        row=row,
        block_ids=list(range(4 * row, 4 * row + 4)),
        adapter_slot=slot,
    )
    request.enter(row)
    return request


def a_step(
    decoding: Iterable[Request] = (),
    prompts: Iterable[Request] = (),
    drafted: Iterable[tuple[Request, Sequence[int]]] = (),
) -> Batch:
    """Decode the last known token of some, verify drafts of others, compute prompts of others."""
    decodes = [
        ScheduledChunk(one, len(one.token_ids) - 1, 1, samples=True, is_decode=True)
        for one in decoding
    ]
    drafts = [
        ScheduledChunk(
            one,
            len(one.token_ids) - 1,
            1 + len(draft),
            samples=True,
            is_decode=True,
            draft=tuple(draft),
        )
        for one, draft in drafted
    ]
    chunks = [
        ScheduledChunk(one, 0, len(one.token_ids), samples=True, is_decode=False) for one in prompts
    ]
    return Batch((*decodes, *drafts, *chunks), len(decodes), len(drafts))
