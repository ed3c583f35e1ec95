"""API keys, tokens and certificates come from files that are watched."""

from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from paceline_sidecar.errors import Unauthorized
from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.watched_file import WatchedFile
from paceline_testing.clock import ManualClock
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine
from paceline_testing.waiting import wait_until


def test_a_replaced_file_is_read_again_within_a_second(tmp_path: Path) -> None:
    """And not looked at more often than that."""
    clock, path = ManualClock(), tmp_path / "file"
    path.write_text("old")
    watched = WatchedFile(path, clock)
    assert watched.text() == "old"
    path.write_text("newer")

    assert watched.text() == "old"
    clock.advance(1.0)
    assert watched.text() == "newer"


def test_a_file_that_went_away_keeps_its_last_text(tmp_path: Path) -> None:
    """Kubernetes swaps directories: for a moment there may be nothing."""
    clock, path = ManualClock(), tmp_path / "file"
    path.write_text("kept")
    watched = WatchedFile(path, clock)
    watched.text()

    path.unlink()
    clock.advance(1.0)

    assert watched.text() == "kept"


@pytest.mark.parametrize(
    "header", [None, "", "one", "Basic one", "Bearer", "Bearer two", "Bearer "]
)
def test_only_a_known_key_gets_in(tmp_path: Path, header: str | None) -> None:
    """One key a line; empty lines are no keys."""
    path = tmp_path / "keys"
    path.write_text("one\n\n  three  \n")
    keys = BearerKeys(path)

    with pytest.raises(Unauthorized):
        keys.check(header)
    assert keys.check("Bearer one") == keys.check("bearer one")
    assert keys.check("Bearer three") != keys.check("Bearer one")


def test_without_a_readable_key_nobody_gets_in(tmp_path: Path) -> None:
    """A missing file is no open door."""
    with pytest.raises(Unauthorized):
        BearerKeys(tmp_path / "missing").check("Bearer ")


def test_keys_are_asked_for_on_v1_only(
    run_dir: Path, engine: ScriptedEngine, start: Callable[..., Sidecar]
) -> None:
    """Probes and scrapes have none; each key has its own prefix cache."""
    path = run_dir / "keys"
    path.write_text("alpha\nbeta\n")
    sidecar = start(api_keys_file=path)
    wait_until(sidecar.ready)
    with pytest.raises(openai.AuthenticationError) as caught:
        sidecar.openai.completions.create(model="scripted", prompt="Hi")
    assert caught.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        list(sidecar.openai.models.list())

    for key in ("alpha", "beta", "alpha"):
        with OpenAI(base_url=f"{sidecar.url}/v1", api_key=key, timeout=30) as client:
            client.completions.create(model="scripted", prompt="Hi")

    alpha, beta, again = [submit.cache_salt for submit in engine.submitted]
    assert alpha == again != beta
    assert "alpha" not in alpha
    assert sidecar.public.get("/metrics").status_code == 200
