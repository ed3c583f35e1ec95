"""`hf://` with the real client against a hub on loopback."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_engine.errors import CacheFull, DownloadFailed, ModelNotFound, RevisionNotFound
from paceline_testing.fake_hub import COMMIT, TOKEN, fake_hub
from paceline_testing.tiny_model import make_tiny_model


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    make_tiny_model(tmp_path / "tiny", "llama")
    (tmp_path / "tiny" / "pytorch_model.bin").write_bytes(b"the same weights once more")
    with fake_hub(tmp_path / "tiny") as url:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield url


def _places(folder: Path, url: str, token: str | None = TOKEN) -> Places:
    return Places(models_dir=folder, model_mount=folder, hub=Hub(folder / "cache", token, url))


@pytest.mark.parametrize("revision", [None, "v1", COMMIT])
def test_a_repository_is_fetched_and_opens(hub: str, tmp_path: Path, revision: str | None) -> None:
    """What the loader reads comes, at one commit; a second copy of the weights does not."""
    located = locate("hf://org/tiny", revision, _places(tmp_path, hub))

    assert open_checkpoint(located.path).config.num_layers == 3
    assert (located.name, located.path.name) == ("tiny", COMMIT)
    assert not (located.path / "pytorch_model.bin").exists()


def test_a_download_tells_how_far_it_is(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bytes, whether or not a person sees a bar."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    told: list[float] = []
    Hub(tmp_path / "cache", TOKEN, hub, progress=told.append).download("org/tiny", COMMIT)

    assert any(0.0 < fraction < 1.0 for fraction in told)
    assert told[-1] == 1.0


@pytest.mark.parametrize("is_begun", [False, True], ids=["from nothing", "after a part"])
def test_a_download_never_goes_back(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_begun: bool
) -> None:
    """More files than come at once: each that begins is a part of the whole from the start."""
    for number in range(20):
        (tmp_path / "tiny" / f"more-{number:02}.json").write_bytes(b"%02d" % number * 20_000)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    told: list[float] = []
    fetching = Hub(tmp_path / "cache", TOKEN, hub, progress=told.append)
    if is_begun:
        folder, _ = fetching.download("org/tiny", COMMIT)
        for number in range(10):
            link = folder / f"more-{number:02}.json"
            link.resolve().unlink()
            link.unlink()
        told.clear()

    fetching.download("org/tiny", COMMIT)

    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == 1.0


def test_a_fetched_commit_needs_no_hub(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that restarts while the hub is away starts from its cache."""
    first = locate("hf://org/tiny", COMMIT, _places(tmp_path, hub))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    assert locate("hf://org/tiny", COMMIT, _places(tmp_path, hub)) == first


@pytest.mark.parametrize(
    ("uri", "revision", "refused"),
    [
        ("hf://org/tiny", "v9", (RevisionNotFound, "no such revision")),
        ("hf://org/huge", None, (ModelNotFound, "no such repository")),
    ],
)
def test_what_the_hub_does_not_hold_has_a_reason(
    hub: str, tmp_path: Path, uri: str, revision: str | None, refused: tuple[type[Exception], str]
) -> None:
    reason, says = refused
    with pytest.raises(reason, match=says):
        locate(uri, revision, _places(tmp_path, hub))


def test_a_gated_repository_says_what_to_do(hub: str, tmp_path: Path) -> None:
    """The hub answers 403 to who shows no token."""
    with pytest.raises(DownloadFailed, match="accept its terms on the hub and give the pod an HF_"):
        locate("hf://org/tiny", None, _places(tmp_path, hub, token=None))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
def test_a_full_cache_is_no_failed_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Trying again does not help: a person must enlarge the volume."""

    def fill(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("huggingface_hub.snapshot_download", fill)

    with pytest.raises(CacheFull, match=f"no room in {tmp_path}"):
        Hub(tmp_path).download("org/tiny", COMMIT)
