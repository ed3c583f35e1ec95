"""What load balancers, benchmarks and tools written for vLLM ask for beside OpenAI's paths."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from paceline_sidecar import __version__
from paceline_sidecar.app import create_public_app, served
from paceline_sidecar.backend import EngineView
from paceline_sidecar.service import Service
from paceline_sidecar.settings import SidecarSettings
from paceline_sidecar.zmq_engine import ZmqEngine
from paceline_testing.byte_tokenizer import EOS_ID, START_ID
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until

StartSidecar = Callable[..., Sidecar]

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("ask", ["GET /health", "GET /ping", "POST /ping"])
def test_a_ready_server_says_so_without_a_body(sidecar_of_module: Sidecar, ask: str) -> None:
    """A load balancer has no key and reads the status alone."""
    method, path = ask.split()

    answer = sidecar_of_module.public.request(method, path)

    assert (answer.status_code, answer.content) == (200, b"")


def test_health_is_503_without_an_engine(start: StartSidecar) -> None:
    """Traffic goes elsewhere."""
    sidecar = start()
    wait_until(sidecar.live)

    assert sidecar.public.get("/health").status_code == 503
    assert sidecar.public.post("/ping").status_code == 503


def test_version_names_ours(sidecar_of_module: Sidecar) -> None:
    """In the field that vLLM has for its own."""
    assert sidecar_of_module.public.get("/version").json() == {"version": __version__}


def test_a_prompt_is_tokenized_as_the_model_will_see_it(sidecar_of_module: Sidecar) -> None:
    """With the length that it may have, and on demand the tokens' own names."""
    body = {"model": "scripted", "prompt": "a b", "return_token_strs": True}

    answer = sidecar_of_module.public.post("/tokenize", json=body).json()

    assert answer["count"] == len(answer["tokens"]) == 3
    assert answer["max_model_len"] == 512
    assert answer["token_strs"] == ["a", "\u0120", "b"]
    back = sidecar_of_module.public.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "a b"}


def test_a_conversation_is_tokenized_by_its_template(sidecar_of_module: Sidecar) -> None:
    """The opening of the answer belongs to it, unless it is not wanted."""
    ask = sidecar_of_module.public.post
    closed = ask("/tokenize", json={"messages": MESSAGES, "add_generation_prompt": False}).json()
    opened = ask("/tokenize", json={"messages": MESSAGES}).json()

    assert closed["tokens"][-1] == EOS_ID
    assert opened["tokens"][: closed["count"]] == closed["tokens"]
    assert opened["tokens"][closed["count"]] == START_ID
    assert opened["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a" * 100_000}, "prompt"),
        ("/detokenize", {"tokens": [100_000]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**70]}, "tokens[0]"),
    ],
    ids=str,
)
def test_what_cannot_be_tokenized_is_named(
    sidecar_of_module: Sidecar, path: str, body: dict[str, object], param: str
) -> None:
    """As everywhere."""
    answer = sidecar_of_module.public.post(path, json=body)

    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["param"] == param


def test_tokenizing_needs_a_key_and_health_none(
    engine: ScriptedEngine, start: StartSidecar, tmp_path: Path
) -> None:
    """Whoever may not generate may not use the tokenizer's threads either."""
    del engine
    (tmp_path / "keys").write_text("one\n")
    sidecar = start(api_keys_file=tmp_path / "keys")
    wait_until(sidecar.ready)

    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert sidecar.public.post(path, json=body).status_code == 401
        key = {"authorization": "Bearer one"}
        assert sidecar.public.post(path, json=body, headers=key).status_code == 200
    assert sidecar.public.get("/health").status_code == 200
    assert sidecar.public.get("/version").status_code == 200


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 200), ("/v1/nothing", 404), ("/health/live", 200)]
)
def test_every_answer_says_which_request_it_was_and_how_long_it_took(
    sidecar_of_module: Sidecar, path: str, status: int
) -> None:
    """OpenAI's clients log both headers."""
    answer = sidecar_of_module.public.get(path, headers={"x-request-id": "mine"})

    assert answer.status_code == status
    assert answer.headers["x-request-id"] == "mine"
    assert 0 <= int(answer.headers["openai-processing-ms"]) < 30_000


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_on_demand_every_chunk_has_the_usage_so_far(
    sidecar: Sidecar, script: Script, path: str
) -> None:
    """VLLM's `continuous_usage_stats`: the last chunk before the total has all of its choice."""
    script.reply = "abc"
    body = {"prompt": "Hi"} if path == "completions" else {"messages": MESSAGES}
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"model": "scripted", "stream": True, "stream_options": options, **body}

    lines = sidecar.public.post(f"/v1/{path}", json=asked).text.split("\n\n")

    usages = [json.loads(line[6:])["usage"] for line in lines if line.startswith("data: {")]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts[-5:] == [1, 2, 3, 4, 4]
    assert len({usage["prompt_tokens"] for usage in usages}) == 1


def test_without_usage_the_option_asks_for_nothing(sidecar_of_module: Sidecar) -> None:
    """As in vLLM, and in the API: no chunk has the field."""
    asked = {
        "model": "scripted",
        "prompt": "Hi",
        "stream": True,
        "stream_options": {"include_usage": False, "continuous_usage_stats": True},
    }

    assert "usage" not in sidecar_of_module.public.post("/v1/completions", json=asked).text


async def test_our_own_mistakes_carry_the_headers_as_well(tmp_path: Path) -> None:
    """They are the ones that people ask about."""
    service = Service(_BrokenBackend(tmp_path / "none"), run_dir=tmp_path)
    app = create_public_app(service, SidecarSettings(), batch_dir=tmp_path)

    transport = httpx.ASGITransport(served(app, service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
        answer = await client.get("/health", headers={"x-request-id": "mine"})

    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "mine"
    assert int(answer.headers["openai-processing-ms"]) >= 0


class _BrokenBackend(ZmqEngine):
    @property
    def view(self) -> EngineView:
        msg = "broken"
        raise RuntimeError(msg)
