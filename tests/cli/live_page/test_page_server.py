"""The page's server answers GET to its own address, and nothing to anybody else."""

from pathlib import Path

import httpx
import msgspec
import pytest

from paceline_cli.live_page.server import LivePage
from paceline_cli.place import Place
from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.up.live import LiveService
from paceline_testing.services import a_service


@pytest.fixture
def page(tmp_path: Path) -> LivePage:
    live = LiveService(
        tmp_path / "service.yaml", a_service(), Place(tmp_path, "127.0.0.1", 1, 2), "token"
    )
    return LivePage(live, HttpxPodClient(), every_s=0.01)


async def test_the_page_is_one_file_with_a_policy(page: LivePage) -> None:
    """Nothing is loaded from elsewhere, and no script but its own may run."""
    async with page.served() as address, httpx.AsyncClient() as client:
        answer = await client.get(address)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in answer.text
    assert "innerHTML" not in answer.text


@pytest.mark.parametrize("path", ["", "events"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", ""])
async def test_another_host_is_refused(page: LivePage, path: str, host: str) -> None:
    """A name that a stranger's DNS leads to loopback is not ours."""
    async with page.served() as address, httpx.AsyncClient() as client:
        answer = await client.get(address + path, headers={"Host": host})

    assert answer.status_code == 421
    assert "service" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "", 405), ("HEAD", "", 405), ("OPTIONS", "events", 405), ("GET", "token", 404)],
)
async def test_there_is_nothing_else(page: LivePage, method: str, path: str, status: int) -> None:
    """Two addresses to read, and none to write."""
    async with page.served() as address, httpx.AsyncClient() as client:
        answer = await client.request(method, address + path)

    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


async def test_events_bring_the_content_and_two_may_look(page: LivePage) -> None:
    """Each viewer gets every content, as one line of JSON."""
    async with page.served() as address, httpx.AsyncClient() as client:
        for _ in range(2):
            async with client.stream("GET", f"{address}events") as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                lines = stream.aiter_lines()
                while not (line := await anext(lines)).startswith("data: "):
                    pass
            shown = msgspec.json.decode(line.removeprefix("data: "))
            assert shown["state"] == {
                "kind": "loading", "text": "loading the model", "fraction": None,
            }  # fmt: skip
