"""`POST /runtime/profile` through a real sidecar and a real engine on a CPU."""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.whole_service import whole_service


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with whole_service(tmp_path_factory.mktemp("model")) as (sidecar, _):
        yield sidecar


def profile(sidecar: Sidecar, **body: Any) -> httpx.Response:
    return sidecar.admin.post("/runtime/profile", json=body)


def test_steps_are_recorded_op_by_op(sidecar: Sidecar) -> None:
    """While requests are served; the trace opens in any viewer of Chrome's format."""
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(profile, sidecar, steps=3)
        while not asked.done():
            served = sidecar.openai.completions.create(model="tiny", prompt="Hi", max_tokens=8)
            assert served.usage is not None

    answer = asked.result()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/gzip"
    assert answer.headers["content-disposition"].endswith('.3-steps.json.gz"')
    names = [
        event.get("name", "")
        for event in json.loads(gzip.decompress(answer.content))["traceEvents"]
    ]
    assert {"ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"} <= set(names)
    assert any(name.startswith("aten::") for name in names)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 101}, "steps"),
        ({"within_s": 0}, "within_s"),
        ({"within_s": 121}, "within_s"),
        ({"step": 1}, "step"),
        ({"within_s": 0.01}, "within_s"),
    ],
    ids=["no step", "too many", "no time", "too long", "unknown", "idle"],
)
def test_a_refusal_names_the_field(sidecar: Sidecar, body: dict[str, Any], field: str) -> None:
    """And its rule, before or after the engine was asked."""
    answer = profile(sidecar, **body)

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == field


def test_the_token_is_asked_for(sidecar: Sidecar) -> None:
    """A profile slows a pod down, and is the operator's to take."""
    answer = httpx.post(f"{sidecar.admin_url}/runtime/profile", json={}, timeout=30)

    assert answer.status_code == 401
    assert sidecar.public.post("/runtime/profile", json={}).status_code == 404
