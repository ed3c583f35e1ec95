"""Adapters are downloaded once, and whoever asked last under a name gets the answer."""

import queue
import threading
from pathlib import Path

import pytest

from paceline_engine.errors import DownloadFailed
from paceline_engine.process.fetching import Fetched, Fetching, download
from paceline_wire import LoadAdapter

_WITHIN_S = 30.0
_LAW = "hf://org/law@abc"


class Hub:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[str] = []
        self.done: queue.SimpleQueue[Fetched] = queue.SimpleQueue()
        self.fetching = Fetching(self._fetch, self.done.put)

    def _fetch(self, path: str) -> Path:
        self.asked.append(path)
        assert self.open.wait(_WITHIN_S)
        if "broken" in path:
            raise DownloadFailed(f"{path}: the hub cannot be reached")
        return Path("/cache") / path.rpartition("/")[2]

    def next(self) -> Fetched:
        self.open.set()
        return self.done.get(timeout=_WITHIN_S)


def test_a_second_call_does_not_download_again() -> None:
    """The sidecar gives up waiting and asks once more: only its last call is answered."""
    hub = Hub()
    hub.fetching.start(LoadAdapter(1, "law", _LAW))
    hub.fetching.start(LoadAdapter(2, "law", _LAW))
    hub.fetching.start(LoadAdapter(3, "jurist", _LAW))

    fetched = hub.next()

    assert hub.asked == [_LAW]
    assert fetched == Fetched(_LAW, Path("/cache/law@abc"))
    assert [change.call for change in hub.fetching.take(fetched)] == [2, 3]
    assert hub.fetching.take(fetched) == []


def test_what_was_given_up_is_not_loaded() -> None:
    """Unloaded, or wanted from elsewhere, while it was on its way."""
    hub = Hub()
    hub.fetching.start(LoadAdapter(1, "law", _LAW))
    hub.fetching.start(LoadAdapter(2, "sql", _LAW))
    hub.fetching.forget("law")
    hub.fetching.start(LoadAdapter(3, "sql", "hf://org/sql@abc"))
    found = {hub.next().path: None for _ in range(2)}

    assert found.keys() == {_LAW, "hf://org/sql@abc"}
    assert hub.fetching.take(Fetched(_LAW, Path("/cache/law@abc"))) == []


def test_a_failure_is_told_with_its_reason() -> None:
    hub = Hub()
    hub.fetching.start(LoadAdapter(1, "law", "hf://org/broken@abc"))

    fetched = hub.next()

    assert fetched.folder is None
    assert fetched.error == "DownloadFailed: hf://org/broken@abc: the hub cannot be reached"


@pytest.mark.parametrize(
    ("path", "asked"),
    [("hf://org/law@abc", ("org/law", "abc")), ("hf://org/law", ("org/law", None))],
)
def test_a_path_names_repository_and_revision(path: str, asked: tuple[str, str | None]) -> None:
    class Repositories:
        def download(self, repository: str, revision: str | None) -> tuple[Path, str]:
            assert (repository, revision) == asked
            return Path("/cache/law"), "abc"

    assert download(path, Repositories()) == Path("/cache/law")
