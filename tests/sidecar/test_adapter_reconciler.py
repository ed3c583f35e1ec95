"""The engine is kept at the adapters that are wanted, whatever happens to it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_sidecar.adapter_plan import Refusal, due_at, next_change, states
from paceline_sidecar.adapter_reconciler import AdapterReconciler
from paceline_sidecar.backend import Deliver, EngineView
from paceline_sidecar.errors import Unavailable
from paceline_testing.clock import ManualClock
from paceline_testing.running_sidecar import Sidecar, start_sidecar
from paceline_testing.scripted_engine import ScriptedEngine
from paceline_testing.waiting import wait_until
from paceline_wire import (
    AdaptersState,
    LimitsState,
    LoadAdapter,
    ProfileSteps,
    SetLimits,
    StepTrace,
    Submit,
    UnloadAdapter,
)

_NAMES = st.sampled_from("abcd")
_PATHS = st.dictionaries(_NAMES, st.sampled_from(["/one", "/two", "/missing"]), max_size=4)


@given(wanted=_PATHS, present=_PATHS)
def test_changes_end_at_what_is_wanted(wanted: dict[str, str], present: dict[str, str]) -> None:
    """In few steps. What is refused is asked for once, and leaves what it was to replace."""
    had = dict(present)
    refusals: dict[str, Refusal] = {}
    for _ in range(len(wanted) + len(present)):
        change = next_change(wanted, present, refusals, now=1.0)
        match change:
            case None:
                break
            case UnloadAdapter(name=name):
                del present[name]
            case LoadAdapter(name=name, path="/missing"):
                assert name not in refusals
                refusals[name] = Refusal.after(None, "/missing", "missing", 1.0)
            case LoadAdapter(name=name, path=path, replaces=replaces):
                assert replaces == (name in present)
                present[name] = path

    assert next_change(wanted, present, refusals, now=1.0) is None
    for name, path in wanted.items():
        expected = had.get(name) if path == "/missing" else path
        assert present.get(name) == expected
    assert present.keys() <= wanted.keys()


def test_a_refused_adapter_is_tried_again_later_and_later() -> None:
    """A slot gets free, a hub comes back; a wrong path must not cost a read every second."""
    wanted = {"sql": "/missing"}
    first = Refusal.after(None, "/missing", "no", now=100.0)

    assert next_change(wanted, {}, {"sql": first}, now=104.9) is None
    assert due_at(wanted, {}, {"sql": first}) == 105.0
    assert next_change(wanted, {}, {"sql": first}, now=105.0) is not None
    second = Refusal.after(first, "/missing", "no", now=105.0)
    assert second.again_at == 115.0
    late = second
    for _ in range(10):
        late = Refusal.after(late, "/missing", "no", now=0.0)
    assert late.delay_s == 300.0
    assert Refusal.after(late, "/other", "no", now=0.0).delay_s == 5.0


def test_another_path_is_tried_at_once() -> None:
    """Whoever mends the manifest does not wait for the old path's turn."""
    refusals = {"sql": Refusal.after(None, "/missing", "no", now=100.0)}

    assert next_change({"sql": "/right"}, {}, refusals, now=100.0) is not None
    assert [found.state for found in states({"sql": "/right"}, {}, refusals)] == ["loading"]
    assert due_at({"sql": "/right"}, {}, refusals) is None


class Dying:
    """A backend whose engine takes no calls any more, which is heard of a moment later."""

    def __init__(self) -> None:
        self.view = EngineView(phase="ready", instance="one")
        self.asked = 0

    def submit(self, message: Submit, deliver: Deliver) -> None:
        raise AssertionError(message, deliver)

    def abort(self, ids: list[str]) -> None:
        raise AssertionError(ids)

    async def set_limits(self, change: SetLimits) -> LimitsState:
        raise AssertionError(change)

    async def profile_steps(self, asked: ProfileSteps) -> StepTrace:
        raise AssertionError(asked)

    async def change_adapters(self, change: LoadAdapter | UnloadAdapter) -> AdaptersState:
        self.asked += 1
        assert self.asked < 100, "the loop never got round to hearing of the end"
        raise Unavailable("engine_lost", f"{change.name}: the engine takes no messages.")


async def test_an_engine_that_dies_meanwhile_is_given_up() -> None:
    """And not asked for ever in a loop that lets nothing else happen."""
    backend = Dying()
    keeper = AdapterReconciler(backend, own_name=str, clock=ManualClock(), again_after_s=0.0)
    keeper.want({"sql": "/a"})
    filling = asyncio.create_task(keeper.fill())
    asyncio.get_running_loop().call_soon(setattr, backend, "view", EngineView())

    with pytest.raises(Unavailable):
        await filling


def _want(sidecar: Sidecar, **paths: str) -> httpx.Response:
    epoch = sidecar.admin.get("/runtime/limits").json()["epoch"] + 1
    adapters = [{"name": name, "path": path} for name, path in paths.items()]
    return sidecar.admin.patch("/runtime/limits", json={"epoch": epoch, "adapters": adapters})


def _states(sidecar: Sidecar) -> dict[str, Any]:
    told = sidecar.admin.get("/runtime/telemetry").json()["adapters"]
    return {adapter["name"]: adapter["state"] for adapter in told}


def test_a_list_is_what_the_engine_has(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Hot: it is changed like a limit, and each look tells how far it is."""
    assert _want(sidecar, sql="/a", law="/b").status_code == 200
    wait_until(lambda: engine.adapters == {"sql": "/a", "law": "/b"})

    _want(sidecar, sql="/c")
    wait_until(lambda: engine.adapters == {"sql": "/c"})

    wait_until(lambda: _states(sidecar) == {"sql": "loaded"})
    assert [model.id for model in sidecar.openai.models.list()] == ["scripted", "sql"]


def test_a_refusal_is_told_and_keeps_nothing_else_away(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """With the engine's sentence; the model's own name is refused without asking it."""
    _want(sidecar, bad="/missing", scripted="/a", good="/b")
    wait_until(lambda: _states(sidecar).get("good") == "loaded")

    told = {one["name"]: one for one in sidecar.admin.get("/runtime/telemetry").json()["adapters"]}
    assert told["bad"]["state"] == told["scripted"]["state"] == "refused"
    assert told["bad"]["message"] == "/missing is missing."
    assert "the name of the model itself" in told["scripted"]["message"]
    assert engine.adapters == {"good": "/b"}
    assert sidecar.ready()
    metrics = sidecar.public.get("/metrics").text
    for state, count in {"loaded": 1, "loading": 0, "refused": 2}.items():
        assert f'paceline_adapters{{model_name="scripted",state="{state}"}} {count}.0' in metrics


def test_without_a_list_what_was_loaded_by_hand_stays(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Nobody has said what is wanted: other changes leave adapters alone."""
    body = {"lora_name": "mine", "lora_path": "/a"}
    sidecar.admin.post("/v1/load_lora_adapter", json=body).raise_for_status()
    epoch = sidecar.admin.get("/runtime/limits").json()["epoch"] + 1
    sidecar.admin.patch("/runtime/limits", json={"epoch": epoch, "max_batch_size": 4})

    assert engine.adapters == {"mine": "/a"}
    assert _states(sidecar) == {}


def test_an_engine_that_was_restarted_gets_its_adapters_back(
    sidecar: Sidecar, engine: ScriptedEngine, run_dir: Path
) -> None:
    """Before the pod counts as ready: no request for one of them fails after a crash."""
    _want(sidecar, sql="/a")
    wait_until(lambda: engine.adapters)
    engine.stop()
    wait_until(lambda: not sidecar.ready())

    with ScriptedEngine(run_dir) as fresh:
        wait_until(sidecar.ready)
        assert fresh.adapters == {"sql": "/a"}


@pytest.fixture
def from_file(run_dir: Path, engine: ScriptedEngine) -> Iterator[Sidecar]:
    """A sidecar whose configuration file lists one good and one bad adapter."""
    del engine
    adapters = [{"name": "sql", "path": "/a"}, {"name": "bad", "path": "/missing"}]
    file = run_dir / "runtime.json"
    file.write_text(json.dumps({"adapters": adapters}))
    sidecar = start_sidecar(run_dir, runtime_config_file=file)
    yield sidecar
    sidecar.leave()
    sidecar.join()


def test_a_fresh_pod_has_its_adapters_when_it_is_ready(
    from_file: Sidecar, engine: ScriptedEngine
) -> None:
    """From the file, also while the operator is away. One that is refused keeps no pod away."""
    wait_until(from_file.ready)

    assert engine.adapters == {"sql": "/a"}
    assert _states(from_file) == {"sql": "loaded", "bad": "refused"}


@pytest.mark.parametrize(
    ("adapters", "says"),
    [
        ([{"name": "sql"}], "path"),
        ([{"name": "sql", "path": "relative"}], "adapters"),
        ([{"name": "", "path": "/a"}], "adapters"),
        ([{"name": "sql", "path": "/a", "rank": 8}], "rank"),
    ],
)
def test_a_bad_list_names_its_field(sidecar: Sidecar, adapters: Any, says: str) -> None:
    body = {"epoch": 99, "adapters": adapters}
    refused = sidecar.admin.patch("/runtime/limits", json=body)

    assert refused.status_code == 422
    assert says in refused.text
