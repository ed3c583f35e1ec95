"""What browsers and caches are told with every answer."""

import httpx
import pytest

from paceline_testing.running_sidecar import Sidecar

_WANTED = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}
_COMPLETION = {"model": "scripted", "prompt": "Hi"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", _COMPLETION, 200),
        ("POST", "/v1/completions", _COMPLETION | {"stream": True}, 200),
        ("POST", "/v1/completions", {}, 400),
        ("GET", "/v1/models", None, 200),
        ("GET", "/metrics", None, 200),
        ("GET", "/health/live", None, 200),
        ("GET", "/docs", None, 200),
        ("GET", "/nothing", None, 404),
        ("OPTIONS", "/v1/completions", None, 405),
    ],
)
def test_no_answer_is_kept_sniffed_or_shared_with_another_origin(
    sidecar_of_module: Sidecar, method: str, path: str, body: object, status: int
) -> None:
    """Nor says which server wrote it; a page of another origin may read none of them."""
    headers = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}

    answer = sidecar_of_module.public.request(method, path, json=body, headers=headers)

    assert answer.status_code == status
    assert {name: answer.headers.get(name) for name in _WANTED} == _WANTED
    assert "server" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_the_admin_port_says_the_same(sidecar_of_module: Sidecar) -> None:
    """Telemetry and limits are nobody else's either."""
    answer = sidecar_of_module.admin.get("/runtime/limits")
    refused = httpx.get(f"{sidecar_of_module.admin_url}/runtime/limits", timeout=30)

    assert (answer.status_code, refused.status_code) == (200, 401)
    for each in (answer, refused):
        assert {name: each.headers.get(name) for name in _WANTED} == _WANTED
        assert "server" not in each.headers
