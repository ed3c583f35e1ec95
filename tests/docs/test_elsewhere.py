"""Links to other sites are asked for by `python -m docs_check --links`; here by a local server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from docs_check.blocks import ROOT
from docs_check.elsewhere import ask, links_elsewhere


class _Site(BaseHTTPRequestHandler):
    """Answers by the path: a status, a redirect to one, or silence until the test ends."""

    asked: list[str]
    is_over: threading.Event

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/silent":
            self.is_over.wait(60)
            return
        if self.path == "/moved":
            self.send_response(301)
            self.send_header("Location", "/200")
        else:
            self.send_response(int(self.path.removeprefix("/")))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests print what matters."""


@pytest.fixture
def site() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the paths that it was asked for."""
    asked: list[str] = []
    is_over = threading.Event()
    handler = type("_ThisSite", (_Site,), {"asked": asked, "is_over": is_over})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/200", "found"),
        ("/moved", "found"),
        ("/404", "BROKEN"),
        ("/410", "BROKEN"),
        ("/500", "BROKEN"),
        ("/403", "refused"),
        ("/429", "refused"),
    ],
)
def test_an_address_is_found_broken_or_refused_to_programs(
    site: tuple[str, list[str]], path: str, said: str
) -> None:
    (answer,) = ask([site[0] + path])

    assert str(answer).split()[:2] == [said, site[0] + path + ("" if said == "found" else ":")]


def test_each_address_is_asked_for_once(site: tuple[str, list[str]]) -> None:
    """Also one that fails: what does not answer now is reported, not pressed."""
    paths = ["/200", "/404", "/500"]

    assert [answer.url for answer in ask(site[0] + path for path in paths)] == [
        site[0] + path for path in paths
    ]
    assert site[1] == paths


def test_a_site_that_does_not_answer_is_broken_and_stops_nothing(
    site: tuple[str, list[str]],
) -> None:
    nobody = "http://127.0.0.1:9/"

    silent, away, there = ask([f"{site[0]}/silent", nobody, f"{site[0]}/200"], timeout_s=0.2)
    assert "ReadTimeout" in str(silent)
    assert "ConnectError" in str(away)
    assert there.is_there


def test_every_address_of_the_pages_is_found_once() -> None:
    """With the pages that link to it, and without the place in its page."""
    found = links_elsewhere()

    orca = "https://www.usenix.org/conference/osdi22/presentation/yu"
    assert found[orca] == ["docs/which-batching.md"]
    assert all(url.startswith("http") and "#" not in url for url in found)
    assert links_elsewhere([ROOT / "docs" / "tutorial.md"]) == {}
