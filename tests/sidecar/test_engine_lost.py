"""An engine that dies, stalls, loads or comes back."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import httpx
import openai
import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until


@pytest.fixture
def script() -> Script:
    return Script(reply="never ending", hold_after=3)


def in_thread(call: Callable[[], object]) -> list[object]:
    """Call in a thread; the list gets the result or the exception."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - handed to the test
            results.append(error)

    threading.Thread(target=run, daemon=True).start()
    return results


def test_a_killed_engine_fails_what_is_in_flight_with_503_at_once(
    run_dir: Path, start: Callable[..., Sidecar]
) -> None:
    """A real process, a real SIGKILL: whole answers get 503, streams an error event."""
    code = (
        "import sys; from pathlib import Path\n"
        "from paceline_testing.scripted_engine import Script, ScriptedEngine\n"
        "ScriptedEngine(Path(sys.argv[1]), Script(hold_after=3)).serve_until_killed()"
    )
    tests = Path(__file__).parents[1]
    process = subprocess.Popen([sys.executable, "-c", code, run_dir], cwd=tests)
    try:
        sidecar = start()
        wait_until(sidecar.ready)
        client = sidecar.openai
        whole = in_thread(lambda: client.completions.create(model="scripted", prompt="Hi"))
        stream = iter(client.completions.create(model="scripted", prompt="Hi", stream=True))
        next(stream)
        wait_until(lambda: in_flight(sidecar) == 2)

        process.send_signal(signal.SIGKILL)

        with pytest.raises(openai.APIError, match="lost"):
            list(stream)
        wait_until(lambda: whole)
        assert isinstance(whole[0], openai.InternalServerError)
        assert whole[0].status_code == 503
        assert not sidecar.ready()
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(model="scripted", prompt="Hi")
        assert refused.value.status_code == 503
    finally:
        process.kill()
        process.wait()


def test_a_client_with_an_open_connection_is_sent_to_another_pod(
    engine: ScriptedEngine, sidecar: Sidecar
) -> None:
    """A Service chooses a pod for each connection, and a pool keeps what is not closed."""
    engine.stop()
    wait_until(lambda: not sidecar.ready())

    with pytest.raises(openai.InternalServerError) as refused:
        sidecar.openai.completions.create(model="scripted", prompt="Hi")

    headers = refused.value.response.headers
    assert (refused.value.status_code, headers["connection"]) == (503, "close")
    assert int(headers["retry-after"]) >= 1
    assert int(headers["retry-after-ms"]) >= 1000


def metric(sidecar: Sidecar, name: str) -> float:
    text = sidecar.public.get("/metrics").text
    (line,) = [row for row in text.splitlines() if row.startswith(f"{name}{{")]
    return float(line.rpartition(" ")[2])


def in_flight(sidecar: Sidecar) -> float:
    return metric(sidecar, "paceline_in_flight_requests")


def test_a_new_engine_is_served_without_a_restart(
    run_dir: Path, engine: ScriptedEngine, sidecar: Sidecar
) -> None:
    """The sidecar says hello until somebody answers, and reads the new tokenizer."""
    engine.stop()
    wait_until(lambda: not sidecar.ready())

    with ScriptedEngine(run_dir, Script(reply="back")) as second:
        wait_until(sidecar.ready)
        done = sidecar.openai.completions.create(model="scripted", prompt="Hi")

        assert done.choices[0].text == "back"
        assert sidecar.admin.get("/runtime/telemetry").json()["instance"] == second.instance


def test_a_silent_engine_is_stalled_until_it_speaks_again(
    engine: ScriptedEngine, start: Callable[..., Sidecar]
) -> None:
    """What runs is given up, and the engine told so; nothing new is sent to it."""
    sidecar = start(heartbeat_s=3.0)
    wait_until(sidecar.ready)
    whole = in_thread(lambda: sidecar.openai.completions.create(model="scripted", prompt="Hi"))
    stream = iter(sidecar.openai.completions.create(model="scripted", prompt="Hi", stream=True))
    next(stream)
    wait_until(lambda: in_flight(sidecar) == 2)

    engine.script.silent = True

    with pytest.raises(openai.APIError, match="silent"):
        list(stream)
    wait_until(lambda: whole)
    assert isinstance(whole[0], openai.InternalServerError)
    assert (whole[0].status_code, whole[0].code) == (503, "engine_stalled")
    assert not sidecar.ready()
    with pytest.raises(openai.InternalServerError) as refused:
        sidecar.openai.completions.create(model="scripted", prompt="Hi")
    assert refused.value.code == "engine_stalled"
    engine.script.silent = False
    wait_until(sidecar.ready)
    wait_until(lambda: sorted(engine.aborted) == sorted(one.id for one in engine.submitted))
    assert metric(sidecar, "paceline_engine_faults_total") >= 1


def test_readiness_says_what_is_missing(
    engine: ScriptedEngine, start: Callable[..., Sidecar]
) -> None:
    """Live at once; ready when the model is loaded."""
    engine.script.ready = False
    sidecar = start()

    def missing() -> str:
        try:
            answer = sidecar.public.get("/health/ready")
        except httpx.TransportError:
            return ""
        assert answer.status_code == 503
        return str(answer.json()["missing"])

    wait_until(lambda: "loading: weights 50%" in missing())
    assert sidecar.admin.get("/health/live").status_code == 200
    engine.script.ready = True
    wait_until(sidecar.ready)


def test_the_tokenizer_is_loaded_while_the_model_is(
    run_dir: Path, engine: ScriptedEngine, start: Callable[..., Sidecar]
) -> None:
    """Once: a pipe in a file's place gives its bytes to one reader, and tells when there is one."""
    engine.script.ready, engine.script.has_tokenizer = False, True
    path = run_dir / "tokenizer_config.json"
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    sidecar = start()

    with _opened_by_a_reader(path) as pipe:
        pipe.write(content)
    assert not sidecar.ready()
    engine.script.ready = True

    wait_until(sidecar.ready)


def _opened_by_a_reader(path: Path) -> BinaryIO:
    """Wait until somebody reads the pipe; return its other end."""
    ends: list[int] = []

    def is_open() -> bool:
        with contextlib.suppress(OSError):  # nobody reads it yet
            ends.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return bool(ends)

    wait_until(is_open)
    os.set_blocking(ends[0], True)
    return os.fdopen(ends[0], "wb")


def test_an_unreadable_tokenizer_is_a_reason_not_a_crash(
    run_dir: Path, engine: ScriptedEngine, start: Callable[..., Sidecar]
) -> None:
    """The pod stays, and says why it is not ready."""
    (run_dir / "tokenizer.json").write_text("{")
    sidecar = start()

    wait_until(lambda: engine.instance in telemetry_instance(sidecar))
    wait_until(lambda: "Exception" in sidecar.public.get("/health/ready").text)


def telemetry_instance(sidecar: Sidecar) -> str:
    try:
        return str(sidecar.admin.get("/runtime/telemetry").json()["instance"])
    except httpx.TransportError:
        return ""


def test_an_engines_own_refusal_fails_one_request_only(
    engine: ScriptedEngine, sidecar: Sidecar
) -> None:
    """500 with the engine's reason; a lost deadline is 504."""
    client = sidecar.openai

    engine.script.error = "no room for the prompt"
    with pytest.raises(openai.InternalServerError, match="no room") as fault:
        client.completions.create(model="scripted", prompt="Hi")
    engine.script.error = "deadline"
    with pytest.raises(openai.InternalServerError) as late:
        client.completions.create(model="scripted", prompt="Hi")

    assert (fault.value.status_code, late.value.status_code) == (500, 504)
    assert sidecar.ready()


@pytest.mark.parametrize("garbage", [b"\xc1 no message", b"\x81\xa4type\xa6nobody"])
def test_an_engine_that_says_what_cannot_be_read_is_greeted_anew(
    sidecar: Sidecar, engine: ScriptedEngine, garbage: bytes
) -> None:
    """What was in flight fails, for nobody knows what was lost; the sidecar lives on."""
    stream = iter(sidecar.openai.completions.create(model="scripted", prompt="Hi", stream=True))
    next(stream)

    engine.script.garbage = garbage

    with pytest.raises(openai.APIError, match="lost"):
        list(stream)
    engine.script.hold_after = None
    wait_until(sidecar.ready)
    done = sidecar.openai.completions.create(model="scripted", prompt="Hi", max_tokens=99)
    assert done.choices[0].text == "never ending"


def test_a_mistake_in_what_hears_the_engine_does_not_end_the_sidecar(
    sidecar: Sidecar, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, and requests are served on."""
    told: list[object] = []

    def fail(_: object, message: object) -> None:
        told.append(message)
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("paceline_sidecar.metrics.ledger.Ledger.heartbeat", fail)
    wait_until(lambda: len(told) > 1)
    engine.script.hold_after = None

    done = sidecar.openai.completions.create(model="scripted", prompt="Hi", max_tokens=99)

    assert done.choices[0].text == "never ending"
