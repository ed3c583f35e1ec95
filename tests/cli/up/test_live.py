"""What happens to the local service is noted once, in a sentence."""

import json
from pathlib import Path

import pytest

from paceline_cli.place import Place
from paceline_cli.up.child import ChildExit
from paceline_cli.up.live import LiveService, StartError
from paceline_testing.reports import a_pod_report, a_report
from paceline_testing.services import a_service
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.telemetry import EngineInfo, PodAdapter


def a_live_service(tmp_path: Path) -> LiveService:
    return LiveService(
        tmp_path / "service.yaml", a_service(), Place(tmp_path, "127.0.0.1", 1, 2), "token"
    )


def _report(*adapters: PodAdapter) -> ServiceReport:
    return a_report(pods=(a_pod_report(adapters=adapters),))


def test_an_adapter_is_noted_when_it_comes_and_when_it_is_refused(tmp_path: Path) -> None:
    """Not in every tick, and not while it is on its way."""
    live = a_live_service(tmp_path)
    notes: list[str] = []
    live.on_event.append(notes.append)
    sql = PodAdapter("sql", "/a", "loaded")

    live.concluded(_report(PodAdapter("sql", "/a", "loading")), ())
    live.concluded(_report(sql), ())
    live.concluded(_report(sql), ())
    live.concluded(_report(sql, PodAdapter("law", "/b", "refused", "its rank is 64.")), ())

    assert notes == ["adapter sql is served", "adapter law was refused: its rank is 64."]


def test_how_the_engine_computes_is_noted_once(tmp_path: Path) -> None:
    """And again only where an engine that was started anew chose otherwise."""
    live = a_live_service(tmp_path)
    notes: list[str] = []
    live.on_event.append(notes.append)
    fast = EngineInfo(
        dtype="bfloat16", dtype_reason="measured so", cores="2 threads, free", ops="ops: ours"
    )

    live.engine_said(None)
    live.engine_said(fast)
    live.engine_said(fast)
    live.engine_said(EngineInfo(dtype="float32"))

    assert notes == [
        "computes in bfloat16: measured so",
        "computes with 2 threads, free",
        "ops: ours",
        "computes in float32",
    ]


def test_loading_is_told_by_the_tenth(tmp_path: Path) -> None:
    """A log that nobody draws a bar in gets a line for each, and no more."""
    live = a_live_service(tmp_path)
    told: list[str] = []
    live.on_loading.append(told.append)

    for percent in (0, 3, 9, 10, 12, 57):
        live.became(
            is_ready=False, phase=f"not ready: the engine is loading: loading weights {percent}%"
        )
    live.became(is_ready=True, phase="serving")

    assert told == ["loading weights 0%", "loading weights 10%", "loading weights 57%"]


def ended(live: LiveService, reason: str) -> None:
    """The engine's process left with status 1 and these last words."""
    words = json.dumps({"reason": reason, "message": "why"})
    live.place.termination_log.parent.mkdir(exist_ok=True)
    live.place.termination_log.write_text(words + "\n")
    log = live.place.termination_log.with_name("engine.log")
    log.write_text("")
    live.exited(ChildExit("engine", 1, ran_s=100.0, restart_in_s=1.0, log=log))


@pytest.mark.parametrize("reason", ["EngineCrashed", "StepHung"])
def test_an_engine_whose_device_fails_is_started_again(tmp_path: Path, reason: str) -> None:
    """It has served, and a fresh process finds a fresh device."""
    live = a_live_service(tmp_path)
    live.became(is_ready=True, phase="serving")

    ended(live, reason)

    assert not live.ready.is_set()
    assert "starting it again" in live.events[-1]


def test_an_engine_that_refuses_its_model_is_not(tmp_path: Path) -> None:
    """It would refuse it again."""
    with pytest.raises(StartError, match="DoesNotFit: why"):
        ended(a_live_service(tmp_path), "DoesNotFit")
