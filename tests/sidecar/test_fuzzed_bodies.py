"""Bodies that nobody meant: every route answers each with a small error that names a field."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from paceline_sidecar.openai.api_document import OPERATIONS, Operation
from paceline_sidecar.openai.api_request import ApiRequest
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import CAPACITY, ScriptedEngine

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/batches": {
        "input_file_id": f"file-{'0' * 32}",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    },
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [39]},
}
ROUTES = {op.path: op for op in OPERATIONS if op.method == "post" and op.body is not None}
# An answer of this size holds no prompt, however large the request was.
SMALL_BYTES = 4096
SETTINGS = settings(max_examples=60, derandomize=True, database=None, deadline=None)

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["\ud800", "\x00", "x" * 70_000, "model", "auto", "🙂" * 600])
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
LARGE = st.sampled_from(
    [[0] * 50_000, ["a"] * 5_000, [[]] * 5_000, {str(n): n for n in range(5_000)}]
)


def names_of(operation: Operation) -> list[str]:
    body = operation.body
    assert body is not None
    refused = list(body.unsupported) if issubclass(body, ApiRequest) else []
    return [*body.model_fields, *refused]


def send(sidecar: Sidecar, path: str, content: bytes) -> Any:
    """Check the answer as such; return the error, or nothing where it was served."""
    headers = {"content-type": "application/json"}
    answer = sidecar.public.post(path, content=content, headers=headers)

    assert answer.status_code < 500, (content[:500], answer.text)
    if answer.status_code == 200:
        return None
    assert len(answer.content) < SMALL_BYTES
    body = answer.json()
    error_schema(sidecar, path, answer.status_code).validate(body)
    assert body["error"]["message"]
    return body["error"]


def error_schema(sidecar: Sidecar, path: str, status: int) -> Draft202012Validator:
    key = (sidecar.url, path, status)
    if key not in _SCHEMAS:
        document = sidecar.public.get("/openapi.json").json()
        told = document["paths"][path]["post"]["responses"][str(status)]
        schema = told["content"]["application/json"]["schema"]
        _SCHEMAS[key] = Draft202012Validator({**schema, "components": document["components"]})
    return _SCHEMAS[key]


_SCHEMAS: dict[tuple[str, str, int], Draft202012Validator] = {}


@pytest.mark.parametrize("path", ROUTES)
@SETTINGS
@given(data=st.data())
def test_a_field_of_any_other_value_is_served_or_named(
    sidecar_of_module: Sidecar, path: str, data: st.DataObject
) -> None:
    """Wrong types, absurd numbers, half a character, long lists: in any field, known or refused."""
    known = names_of(ROUTES[path])
    name = data.draw(st.sampled_from(known))
    body = {**GOOD.get(path, {}), name: data.draw(JUNK | LARGE)}

    error = send(sidecar_of_module, path, json.dumps(body).encode())

    # Text that is no JSON has no field to be named; Anthropic's errors have none at all.
    if error is not None and "param" in error and is_json(body):
        assert error["param"], error
        top = error["param"].partition(".")[0].partition("[")[0]
        assert top in {*known, "prompt", "id", "schema"}, error


def is_json(value: Any) -> bool:
    """Tell whether JSON has all that is in it: no NaN, no half of a surrogate pair."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any(0xD800 <= ord(letter) < 0xE000 for letter in value)
    if isinstance(value, dict):
        return all(is_json(part) for pair in value.items() for part in pair)
    return all(map(is_json, value)) if isinstance(value, list) else True


@pytest.mark.parametrize("path", ROUTES)
@SETTINGS
@given(
    at=st.integers(0, 200),
    cut=st.integers(0, 40),
    put=st.binary(max_size=12)
    | st.sampled_from([b"[" * 5_000, b'{"a":' * 5_000, b"\xff\xfe", b'"']),
)
@example(at=0, cut=200, put=b"")
@example(at=1, cut=0, put=b'"max_tokens": 1e400, ')
def test_bytes_that_were_changed_on_the_way_are_served_or_refused(
    sidecar_of_module: Sidecar, path: str, at: int, cut: int, put: bytes
) -> None:
    """Truncated, doubled, not UTF-8."""
    content = json.dumps(GOOD.get(path, {})).encode()
    at %= len(content)

    send(sidecar_of_module, path, content[:at] + put + content[at + cut :])


@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/v1/batches"])
@pytest.mark.parametrize(
    "name", ["", "no-such-model", "x" * 100_000, "../scripted", "scripted\x00"]
)
def test_an_unknown_model_is_named(sidecar_of_module: Sidecar, path: str, name: str) -> None:
    """With a name of any length."""
    body = {**GOOD.get(path, {}), "model": name}

    error = send(sidecar_of_module, path, json.dumps(body).encode())

    assert error is not None
    assert error.get("param", "model") == "model"


@SETTINGS
@given(content=st.binary(max_size=300), boundary=st.text(max_size=20))
def test_a_form_of_any_bytes_is_no_fault_of_ours(
    sidecar_of_module: Sidecar, content: bytes, boundary: str
) -> None:
    """An upload is read before anything is known of it."""
    kind = f"multipart/form-data; boundary={boundary}".encode("latin-1", "replace")
    clean = bytes(byte for byte in kind if byte >= 0x20 and byte != 0x7F)
    headers = [(b"content-type", clean)]

    answer = sidecar_of_module.public.post("/v1/files", content=content, headers=headers)

    assert answer.status_code in {200, 400}
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]


@SETTINGS
@given(limit=st.text(max_size=30), after=st.text(max_size=30))
def test_a_page_is_given_or_its_parameter_named(
    sidecar_of_module: Sidecar, limit: str, after: str
) -> None:
    """Numbers in letters of all scripts, and ids that were never given."""
    for path in ("/v1/files", "/v1/batches"):
        query = {"limit": limit, "after": after}

        answer = sidecar_of_module.public.get(path, params=query)

        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in {"limit", "after"}


def test_the_engine_saw_only_prompts_that_fit(
    sidecar_of_module: Sidecar, engine_of_module: ScriptedEngine
) -> None:
    """Whatever was asked for, what was computed is bounded; and requests are still served."""
    for submit in engine_of_module.submitted:
        assert 0 < len(submit.prompt_ids) < CAPACITY.max_model_len
        assert len(submit.prompt_ids) + submit.sampling.max_tokens <= CAPACITY.max_model_len
    answer = sidecar_of_module.public.post("/v1/completions", json=GOOD["/v1/completions"])
    assert answer.status_code == 200
