"""Adapters that a manifest declares are served by a real pod, told by the operator's own loop."""

import asyncio
import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from paceline_api.tuning_spec import tuning_spec
from paceline_operator.pod_client import AiohttpPodClient
from paceline_testing.fake_hub import COMMIT, REPOSITORY, fake_hub
from paceline_testing.fake_hub import TOKEN as HUB_TOKEN
from paceline_testing.running_sidecar import TOKEN, Sidecar
from paceline_testing.services import a_service
from paceline_testing.tiny_adapter import make_tiny_adapter
from paceline_testing.tiny_model import make_tiny_model
from paceline_testing.whole_service import whole_service
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import PodAdapter

PROMPT = [5, 60, 7, 80, 9, 100, 11]
_NEW_TOKENS = 8
_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """A hub that has one adapter; its address and what the model grows by."""
    folder = tmp_path_factory.mktemp("model")
    model = make_tiny_model(folder, "llama")
    adapter = tmp_path_factory.mktemp("hub") / "adapter"
    growth = make_tiny_adapter(adapter, model, seed=2)
    with fake_hub(adapter) as address:
        yield address, growth


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, hub: tuple[str, Any]
) -> Iterator[tuple[Sidecar, Any]]:
    folder = tmp_path_factory.mktemp("served")
    settings = {
        "PACELINE_ENGINE_MAX_LORAS": "2",
        "PACELINE_ENGINE_MAX_LORA_RANK": "8",
        "PACELINE_ENGINE_CACHE_DIR": str(folder / "cache"),
        "HF_ENDPOINT": hub[0],
        "HF_TOKEN": HUB_TOKEN,
        "HF_HUB_OFFLINE": "0",
    }
    with whole_service(folder, engine_settings=settings) as running:
        yield running


async def _told(sidecar: Sidecar, *adapters: dict[str, str]) -> dict[str, PodAdapter]:
    """Tick until every declared adapter is loaded or refused."""
    spec = tuning_spec(
        a_service(adapters=list(adapters), engine={"lora": {"maxAdapters": 2, "maxRank": 8}}).spec
    )
    pod = PodTarget("pod", sidecar.admin_url, TOKEN)
    async with AiohttpPodClient(timeout_s=20.0) as pods:
        loop = TuningLoop(pods, time.time)
        deadline = time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline:
            (report,) = (await loop.tick(ServiceTarget("default/quick", spec, (pod,)))).pods
            assert not report.error
            found = {adapter.name: adapter for adapter in report.adapters}
            is_settled = all(adapter.state != "loading" for adapter in found.values())
            # Telemetry is read before the change is sent: the first tick tells of the old list.
            if is_settled and found.keys() == {adapter["name"] for adapter in adapters}:
                return found
            await asyncio.sleep(0.05)
    raise AssertionError("the adapters did not settle")


def _says(sidecar: Sidecar, model: str) -> str:
    answer = sidecar.openai.completions.create(
        model=model,
        prompt=PROMPT,
        max_tokens=_NEW_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return answer.choices[0].text


def _merged(sidecar: Sidecar, reference: Any, growth: dict[str, torch.Tensor]) -> str:
    """What transformers says with the adapter merged, as the service writes tokens."""
    model = copy.deepcopy(reference)
    state = model.state_dict()
    for name, grown in growth.items():
        state[name] += grown
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        said = model.generate(
            ids, max_new_tokens=_NEW_TOKENS, min_new_tokens=_NEW_TOKENS, do_sample=False
        )[0, len(PROMPT) :].tolist()
    tokenizer = Tokenizer.from_file(str(sidecar.settings.run_dir / "tokenizer.json"))
    text: str = tokenizer.decode(said)
    return text


async def test_declared_adapters_are_served(
    service: tuple[Sidecar, Any], hub: tuple[str, Any], tmp_path: Path
) -> None:
    """One from a folder and one that the engine downloads, each as if it were merged."""
    sidecar, reference = service
    growth = make_tiny_adapter(tmp_path / "sql", reference, seed=1)
    local = {"name": "sql", "uri": f"file://{tmp_path}/sql"}
    remote = {"name": "law", "uri": f"hf://{REPOSITORY}", "revision": COMMIT}

    found = await _told(sidecar, local, remote)

    assert {name: adapter.state for name, adapter in found.items()} == {
        "sql": "loaded",
        "law": "loaded",
    }
    assert _says(sidecar, "sql") == _merged(sidecar, reference, growth)
    assert _says(sidecar, "law") == _merged(sidecar, reference, hub[1])
    assert len({_says(sidecar, name) for name in ("tiny", "sql", "law")}) == 3


async def test_another_uri_takes_the_place_of_the_first(
    service: tuple[Sidecar, Any], tmp_path: Path
) -> None:
    """With no slot free beside it. What is left out of the manifest is no model any more."""
    sidecar, reference = service
    adapters = {
        name: make_tiny_adapter(tmp_path / name, reference, seed=seed)
        for seed, name in enumerate(("one", "two", "three"), start=3)
    }
    first = {"name": "a", "uri": f"file://{tmp_path}/one"}
    second = {"name": "b", "uri": f"file://{tmp_path}/two"}
    await _told(sidecar, first, second)

    await _told(sidecar, first, second | {"uri": f"file://{tmp_path}/three"})
    assert _says(sidecar, "b") == _merged(sidecar, reference, adapters["three"])

    assert await _told(sidecar) == {}
    assert [model.id for model in sidecar.openai.models.list()] == ["tiny"]


async def test_a_refusal_is_the_engines_sentence(
    service: tuple[Sidecar, Any], tmp_path: Path
) -> None:
    """A folder is none, a rank is too high, or the hub does not have the commit."""
    sidecar, reference = service
    make_tiny_adapter(tmp_path / "wide", reference, seed=1, rank=16)
    wide = {"name": "wide", "uri": f"file://{tmp_path}/wide"}
    gone = {"name": "gone", "uri": f"hf://{REPOSITORY}", "revision": "deadbeef"}

    found = await _told(sidecar, wide, gone)

    assert {adapter.state for adapter in found.values()} == {"refused"}
    assert "rank is 16, at most 8" in found["wide"].message
    assert found["gone"].message.startswith("RevisionNotFound: hf://org/tiny at deadbeef")
