"""API keys, tokens and certificates come from files that are watched."""

import gc
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType

import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from paceline_sidecar.errors import Unauthorized
from paceline_sidecar.keys import ANYONE, BearerKeys, Principal
from paceline_sidecar.metrics.finished_request import FinishedRequest
from paceline_sidecar.metrics.key_counts import MAX_NAMES, KeyCounts
from paceline_sidecar.watched_file import WatchedFile
from paceline_testing.clock import ManualClock
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until


def test_a_replaced_file_is_read_again_within_a_second(tmp_path: Path) -> None:
    """And not looked at more often than that."""
    clock, path = ManualClock(), tmp_path / "file"
    path.write_text("old")
    watched = WatchedFile(path, str, clock)
    assert watched.read() == "old"
    path.write_text("newer")

    assert watched.read() == "old"
    clock.advance(1.0)
    assert watched.read() == "newer"


def test_a_file_that_went_away_keeps_its_last_text(tmp_path: Path) -> None:
    """Kubernetes swaps directories: for a moment there may be nothing."""
    clock, path = ManualClock(), tmp_path / "file"
    path.write_text("kept")
    watched = WatchedFile(path, str, clock)
    watched.read()

    path.unlink()
    clock.advance(1.0)

    assert watched.read() == "kept"


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


def test_a_line_may_name_its_key(tmp_path: Path) -> None:
    """Two keys of a name are one caller: a key is exchanged without losing the cached prefixes."""
    path = tmp_path / "keys"
    path.write_text("team-a: old\nteam-a:\tnew\nteam-b: other\nold-style\n")
    keys = BearerKeys(path)

    old, new = keys.check("Bearer old"), keys.check("Bearer new")
    assert old == new
    assert old.name == "team-a"
    assert keys.check("Bearer other").id != old.id
    assert keys.check("Bearer old-style").name == ""
    with pytest.raises(Unauthorized):
        keys.check("Bearer team-a: old")


@pytest.mark.parametrize("line", ["# said", "two words", "a b: key", ": key", "name: a key"])
def test_a_line_that_no_client_could_send_is_no_key(
    tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A comment would be a key that everyone can guess; the log names the line alone."""
    path = tmp_path / "keys"
    path.write_text(f"good\n{line}\n")
    keys = BearerKeys(path)

    with pytest.raises(Unauthorized):
        keys.check(f"Bearer {line}")
    assert keys.check("Bearer good")
    assert line not in caplog.text
    assert ("line 2" in caplog.text) == (line != "# said")


@pytest.mark.parametrize("key", ["c2VjcmV0==", "name:key", "a=b", "sk-1.2_3~4+5/6"])
def test_a_key_with_signs_inside_is_a_key(tmp_path: Path, key: str) -> None:
    """As it was before keys had names."""
    path = tmp_path / "keys"
    path.write_text(f"{key}\n")

    assert BearerKeys(path).check(f"Bearer {key}").name == ""


def test_memory_holds_no_key(tmp_path: Path) -> None:
    """A dump of the process shows nothing that opens another door."""
    path = tmp_path / "keys"
    path.write_text("planted-key-one\nteam-a: planted-key-two\n")
    keys = BearerKeys(path)
    keys.check("Bearer planted-key-two")
    del path

    assert keys.check("Bearer planted-key-one").id
    assert "planted" not in _everything(keys)


def _everything(root: object) -> str:
    """The text of all that is reachable from an object, as the garbage collector sees it."""
    found: list[str] = []
    seen, left = set[int](), [root]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        if isinstance(each, str | bytes):
            found.append(repr(each))
        left.extend(gc.get_referents(each))
    return "\n".join(found)


def test_callers_are_counted_by_the_names_of_their_keys(
    run_dir: Path, start: Callable[..., Sidecar]
) -> None:
    """On the admin port alone: who may scrape the public one is anybody."""
    path = run_dir / "keys"
    path.write_text("team-a: alpha\nteam-a: beta\ngamma\n")
    sidecar = start(api_keys_file=path)
    with ScriptedEngine(run_dir, Script()):
        wait_until(sidecar.ready)
        body = {"model": "scripted", "prompt": "Hi"}
        for key in ("alpha", "beta", "gamma"):
            headers = {"x-api-key": key}
            answer = sidecar.public.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
        headers = {"x-api-key": "wrong"}
        answer = sidecar.public.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 401

        text = sidecar.admin.get("/metrics").text
        public = sidecar.public.get("/metrics").text

    rows = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("paceline_key_") and sample.labels.get("kind") != "output"
    }
    model = ("model_name", "scripted")
    assert rows == {
        ("paceline_key_requests_total", ("key", "team-a"), model, ("outcome", "ok")): 2,
        ("paceline_key_requests_total", ("key", "unnamed"), model, ("outcome", "ok")): 1,
        ("paceline_key_tokens_total", ("key", "team-a"), ("kind", "prompt"), model): 4,
        ("paceline_key_tokens_total", ("key", "unnamed"), ("kind", "prompt"), model): 2,
    }
    assert "team-a" not in public
    assert 'paceline_refusals_total{model_name="scripted",reason="unauthorized"} 1.0' in public
    assert not any(key in text for key in ("alpha", "beta", "gamma"))


def test_names_beyond_the_first_share_a_row() -> None:
    """A file of a thousand names must not make a thousand series."""
    counts = KeyCounts()
    for number in range(MAX_NAMES + 10):
        counts.ended(_record(Principal(f"name-{number}", f"{number}")))
    counts.ended(_record(Principal("name-0", "0")))
    counts.ended(_record(ANYONE))

    assert len(counts.requests) == MAX_NAMES + 1
    assert counts.requests["other", "ok"] == 10
    assert counts.requests["name-0", "ok"] == 2


def _record(principal: Principal) -> FinishedRequest:
    return FinishedRequest("interactive", 0.0, 1.0, "ok", principal=principal)


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
    assert [submit.caller for submit in engine.submitted] == [alpha, beta, again]
    assert sidecar.public.get("/metrics").status_code == 200
