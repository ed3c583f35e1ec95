"""The live page of a pod: open to whom the admin port is open, its figures to who has the token."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from paceline_sidecar.backend import EngineView
from paceline_sidecar.live.limit_log import LEASE_LOST, LimitLog
from paceline_sidecar.tuner_status import LastTunerStatus, TunerStatus
from paceline_testing.running_sidecar import TOKEN, Sidecar
from paceline_testing.scripted_engine import (
    CAPACITY,
    ScriptedEngine,
    a_step,
    an_engine_load,
)
from paceline_testing.waiting import wait_until
from paceline_wire import Limits, LimitsState


@contextmanager
def contents(sidecar: Sidecar) -> Iterator[Iterator[dict[str, Any]]]:
    """Everything that the page is sent, until the stream ends."""
    with sidecar.admin.stream("GET", "/live/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        yield (json.loads(line.removeprefix("data: ")) for line in lines if line)


def content(sidecar: Sidecar) -> dict[str, Any]:
    """What the page is sent first."""
    with contents(sidecar) as each:
        return next(each)


def test_the_page_is_open_and_says_nothing_of_the_pod(sidecar: Sidecar) -> None:
    """A browser sends no token when it loads a page, and needs none for this one."""
    answer = httpx.get(f"{sidecar.admin_url}/live", timeout=30)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in answer.headers
    assert "scripted" not in answer.text


@pytest.mark.parametrize("token", [None, "", "Bearer another", TOKEN], ids=str)
def test_figures_are_for_who_has_the_token(sidecar: Sidecar, token: str | None) -> None:
    """As those of the runtime API."""
    headers = {} if token is None else {"authorization": token}

    answer = httpx.get(f"{sidecar.admin_url}/live/events", headers=headers, timeout=30)

    assert answer.status_code == 401
    assert "scripted" not in answer.text


@pytest.mark.parametrize("path", ["/live", "/live/events"])
def test_the_public_port_has_no_such_page(sidecar: Sidecar, path: str) -> None:
    """Callers are not those who watch."""
    headers = {"authorization": f"Bearer {TOKEN}"}

    assert sidecar.public.get(path, headers=headers).status_code == 404


def test_requests_steps_and_load_are_shown(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Each latency beside its target; the steps of the last minute by their sequences."""
    sidecar.admin.patch("/runtime/limits", json={"epoch": 5, "sla": {"ttft_p99_ms": 60_000}})
    sidecar.openai.completions.create(model="scripted", prompt="Hi")
    now = time.monotonic()
    engine.script.steps = [
        a_step(1, at=now - 90),
        *(a_step(i, at=now, decode=i) for i in (2, 2, 4)),
    ]

    with contents(sidecar) as each:
        shown = next(one for one in each if one["histogram"] and one["samples"])

    assert shown["name"] == "scripted"
    assert shown["state"]["kind"] == "serving"
    assert [(each["name"], each["target_ms"]) for each in shown["latencies"]] == [
        ("TTFT", 60_000.0), ("TPOT", None), ("ITL", None),
    ]  # fmt: skip
    assert all(each["seen_ms"] is not None for each in shown["latencies"])
    assert (shown["samples"], shown["attainment"]) == (1, 1.0)
    assert [bar["steps"] for bar in shown["histogram"]] == [0, 0, 2, 0, 1]
    assert shown["work"]["kv_share"] == 3 / 256
    assert len(shown["history"]["times"]) == len(shown["latencies"][0]["series"])


def test_what_would_help_is_judged_from_the_pods_own_figures(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """What the engine did before the page's window is not held against it now."""
    with contents(sidecar) as each:
        first = next(one for one in each if one["work"]["running"] is not None)
        engine.script.load = msgspec.structs.replace(
            an_engine_load(running=64, waiting=9),
            preemptions=12,
            output_tokens=60,
        )
        shown = next(one for one in each if len(one["advice"]) > 1)

    assert first["advice"] == []
    assert first["advice_note"].startswith("Nothing stands out in this pod's own figures.")
    assert first["limits"]["binding"] == "load"
    assert shown["limits"]["binding"] == "batch size"
    told = " ".join(each["text"] for each in shown["advice"])
    assert "10 sequences lost their KV blocks to others" in told
    assert "64 sequences run, as many as the limit lets, and 9 interactive requests wait" in told
    assert "paceline diagnose" in shown["advice_note"]


def test_a_change_is_shown_with_its_reason(sidecar: Sidecar) -> None:
    """The reason comes with the change; a change of the configuration alone is no decision."""
    first = {"epoch": 5, "max_batch_size": 8, "token_budget": 256, "reason": "ITL binds"}
    sidecar.admin.patch("/runtime/limits", json=first)
    answer = sidecar.admin.patch(
        "/runtime/limits", json={"epoch": 6, "config_hash": "other", "lease_s": 60}
    ).json()

    shown = content(sidecar)

    (change,) = shown["changes"]
    assert (change["from_batch_size"], change["to_batch_size"]) == (64, 8)
    assert (change["to_token_budget"], change["reason"]) == (256, "ITL binds")
    assert abs(change["at"] - time.time()) < 60
    assert answer["reason"] == shown["limits"]["reason"] == "ITL binds"
    assert 0 < shown["limits"]["lease_s"] <= 60


def test_what_the_tuner_says_is_shown_with_its_age(sidecar: Sidecar) -> None:
    """It comes with renewals, too, and stands beside the pod's own figures."""
    status = {"phase": "Tracking", "verdict": "Meeting", "binding": "SLA:itl"}
    sidecar.admin.patch("/runtime/limits", json={"epoch": 5, "lease_s": 60})
    sidecar.admin.patch("/runtime/limits", json={"epoch": 5, "lease_s": 60, "tuner": status})

    limits = content(sidecar)["limits"]

    assert (limits["tuner"], limits["verdict"]) == ("Tracking, bound by SLA:itl", "Meeting")
    assert 0 <= limits["tuner_age_s"] < 60
    assert limits["binding"] in {"load", "batch size"}


def test_a_limit_that_nothing_binds_is_not_bound_by_none(sidecar: Sidecar) -> None:
    """The page says the phase alone."""
    status = {"phase": "Frozen", "verdict": "Unknown", "binding": "None"}
    sidecar.admin.patch("/runtime/limits", json={"epoch": 5, "lease_s": 60, "tuner": status})

    assert content(sidecar)["limits"]["tuner"] == "Frozen"


def test_the_stream_ends_when_the_pod_leaves(sidecar: Sidecar) -> None:
    """Who watches does not hold the sidecar up."""
    with contents(sidecar) as each:
        next(each)
        sidecar.leave()
        kinds = [shown["state"]["kind"] for shown in each]

    assert set(kinds) <= {"serving", "down"}
    assert "down" not in kinds[:-1]
    sidecar.join()


@pytest.mark.usefixtures("start")
def test_a_pod_without_an_engine_says_so(start: Any) -> None:
    """The page is there before the model is."""
    sidecar = start()
    wait_until(lambda: _answers(sidecar))

    shown = content(sidecar)

    assert shown["state"] == {
        "kind": "down", "text": "the engine has not answered yet", "fraction": None,
    }  # fmt: skip
    assert shown["limits"]["batch_size"] is None
    assert shown["work"]["running"] is None
    assert shown["advice_note"] == "Nothing is known of the engine yet."


def _answers(sidecar: Sidecar) -> bool:
    try:
        return sidecar.admin.get("/live").status_code == 200
    except httpx.TransportError:
        return False


def a_view(*, instance: str = "one", **changes: Any) -> EngineView:
    limits = Limits(max_batch_size=32, token_budget=2048)
    state = LimitsState(
        call=0,
        requested=limits,
        effective=limits,
        certified=limits,
        capacity=CAPACITY,
        epoch=4,
        since_step=0,
        lease_expires_at=None,
        lease_lost=False,
        clamped=[],
        ignored=[],
    )
    state = msgspec.structs.replace(state, **changes)
    return EngineView(phase="ready", instance=instance, limits=state)


def test_a_lost_lease_has_a_reason_of_its_own() -> None:
    """Nobody asked for the certified limits then."""
    log = LimitLog(clock=lambda: 7.0)
    log.expect(5, "more fits")
    tuned, certified = (Limits(max_batch_size=n, token_budget=512) for n in (48, 16))

    log.engine_changed(a_view(), a_view(epoch=5, requested=tuned))
    log.engine_changed(
        a_view(epoch=5, requested=tuned),
        a_view(epoch=5, requested=tuned, effective=certified, lease_lost=True),
    )

    assert [(each.at, each.to_batch_size, each.reason) for each in log.changes] == [
        (7.0, 16, LEASE_LOST),
        (7.0, 48, "more fits"),
    ]


@pytest.mark.parametrize(
    ("view", "now", "is_shown"),
    [
        ({"lease_expires_at": 60.0}, 59.0, True),
        ({"lease_expires_at": 60.0}, 60.0, False),
        ({"lease_expires_at": None, "lease_lost": True}, 61.0, False),
        ({"instance": "two", "lease_expires_at": 60.0}, 59.0, False),
    ],
    ids=["lasts", "has ended unnoticed", "is lost", "another engine"],
)
def test_the_tuners_status_ends_with_its_lease(
    view: dict[str, Any], now: float, *, is_shown: bool
) -> None:
    """Who is not heard of any more has nothing to say of the pod now."""
    tuner = LastTunerStatus()
    status = TunerStatus("Tracking", "Meeting", "SLA:itl", at=0.0, instance="one")
    tuner.update(status)

    assert tuner.status(a_view(**view), now=now) == (status if is_shown else None)


def test_another_engines_limits_are_no_change() -> None:
    """It starts with limits of its own, and its epochs are others."""
    log = LimitLog()
    log.expect(5, "more fits")
    other = Limits(max_batch_size=1, token_budget=1)

    log.engine_changed(a_view(), a_view(instance="two", requested=other))

    assert log.changes == ()
    assert log.reason(9) == ""
