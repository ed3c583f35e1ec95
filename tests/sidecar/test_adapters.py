"""LoRA adapters: changed on the admin port, named as a model on the public one."""

from typing import Any

import httpx
import openai
import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine


def _load(sidecar: Sidecar, name: str, path: str = "/adapters/sql") -> httpx.Response:
    body = {"lora_name": name, "lora_path": path}
    return sidecar.admin.post("/v1/load_lora_adapter", json=body)


def test_a_loaded_adapter_is_a_model(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """It is listed under the model it adds to, and a request that names it runs with it."""
    loaded = _load(sidecar, "sql")
    models = {model.id: model for model in sidecar.openai.models.list()}
    answer = sidecar.openai.completions.create(model="sql", prompt="Hi")
    sidecar.openai.completions.create(model="scripted", prompt="Hi")

    assert loaded.json() == {"lora_adapters": ["sql"]}
    assert list(models) == ["scripted", "sql"]
    assert models["sql"].model_extra is not None
    assert models["sql"].model_extra["parent"] == "scripted"
    assert sidecar.openai.models.retrieve("sql").id == "sql"
    assert answer.model == "sql"
    assert [submit.adapter for submit in engine.submitted] == ["sql", ""]


def test_chats_and_streams_name_it_too(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    _load(sidecar, "sql")
    chunks = list(
        sidecar.openai.chat.completions.create(
            model="sql", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
    )

    assert {chunk.model for chunk in chunks} == {"sql"}
    assert engine.submitted[0].adapter == "sql"


def test_an_unloaded_adapter_is_no_model(sidecar: Sidecar) -> None:
    _load(sidecar, "sql")
    body = {"lora_name": "sql"}
    unloaded = sidecar.admin.post("/v1/unload_lora_adapter", json=body)

    assert unloaded.json() == {"lora_adapters": []}
    assert [model.id for model in sidecar.openai.models.list()] == ["scripted"]
    with pytest.raises(openai.NotFoundError, match="sql"):
        sidecar.openai.completions.create(model="sql", prompt="Hi")


def test_the_engines_refusal_is_the_answer(sidecar: Sidecar) -> None:
    refused = [
        _load(sidecar, "sql", "/adapters/missing"),
        sidecar.admin.post("/v1/unload_lora_adapter", json={"lora_name": "sql"}),
    ]

    assert [answer.status_code for answer in refused] == [400, 400]
    assert refused[0].json()["error"]["message"] == "/adapters/missing is missing."
    assert refused[0].json()["error"]["param"] == "lora_path"
    assert refused[1].json()["error"]["message"] == "There is no adapter 'sql'."


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"lora_name": "sql"}, "lora_path"),
        ({"lora_name": "", "lora_path": "/a"}, "lora_name"),
        ({"lora_name": "x" * 200, "lora_path": "/a"}, "lora_name"),
        ({"lora_name": "sql", "lora_path": "../a"}, "lora_path"),
        ({"lora_name": 5, "lora_path": "/a"}, "lora_name"),
        ({"lora_name": "scripted", "lora_path": "/a"}, "differ from the model's own name"),
        ([], "object"),
    ],
)
def test_a_bad_body_names_its_field(
    sidecar: Sidecar, engine: ScriptedEngine, body: Any, says: str
) -> None:
    refused = sidecar.admin.post("/v1/load_lora_adapter", json=body)

    assert refused.status_code == 400
    assert says in refused.json()["error"]["message"]
    assert engine.adapters == {}


def test_only_the_admin_port_and_its_token_may_change_adapters(sidecar: Sidecar) -> None:
    """A path is read by the engine: no client of the public port may name one."""
    body = {"lora_name": "sql", "lora_path": "/a"}
    url = f"{sidecar.admin_url}/v1/load_lora_adapter"

    assert sidecar.public.post("/v1/load_lora_adapter", json=body).status_code == 404
    assert httpx.post(url, json=body, timeout=60).status_code == 401
    wrong = {"authorization": "Bearer x"}
    assert httpx.post(url, json=body, headers=wrong, timeout=60).status_code == 401
