"""A kubelet's readiness probe hears of the end of a start at once, not at its next period."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from paceline_sidecar.routes import probes
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until

KUBELET = {"user-agent": "kube-probe/1.36"}
_FOR_EVER_S = 3600.0


def as_kubelet(sidecar: Sidecar) -> httpx.Response:
    return httpx.get(f"{sidecar.url}/health/ready", headers=KUBELET, timeout=120)


def test_a_probe_during_the_start_is_answered_at_its_end(
    run_dir: Path, start: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both while the engine is not there and while it loads its model."""
    monkeypatch.setattr(probes, "HOLD_S", _FOR_EVER_S)
    sidecar = start()
    wait_until(sidecar.live)
    with ThreadPoolExecutor(max_workers=1) as pool:
        probe = pool.submit(as_kubelet, sidecar)
        with ScriptedEngine(run_dir, Script(ready=False)) as engine:
            wait_until(lambda: "loading" in sidecar.public.get("/health/ready").text)
            assert not probe.done()
            engine.script.ready = True
            assert probe.result().status_code == 200


def test_a_start_that_takes_longer_is_not_ready(
    start: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet gives up after the probe's timeout: it is told before."""
    monkeypatch.setattr(probes, "HOLD_S", 0.1)
    sidecar = start()
    wait_until(sidecar.live)

    assert as_kubelet(sidecar).status_code == 503


def test_what_will_not_end_by_itself_is_said_at_once(
    engine: ScriptedEngine, start: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that cannot serve must be taken out of its Service without a delay."""
    monkeypatch.setattr(probes, "HOLD_S", _FOR_EVER_S)
    sidecar = start(heartbeat_s=0.5)
    wait_until(sidecar.ready)
    assert as_kubelet(sidecar).status_code == 200

    engine.script.silent = True
    wait_until(lambda: not sidecar.ready())

    assert as_kubelet(sidecar).status_code == 503


def test_others_are_answered_at_once(
    start: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who asks wants to know what is missing now."""
    monkeypatch.setattr(probes, "HOLD_S", _FOR_EVER_S)
    sidecar = start()
    wait_until(sidecar.live)

    assert sidecar.public.get("/health/ready").status_code == 503
