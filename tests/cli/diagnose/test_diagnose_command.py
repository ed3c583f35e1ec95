"""`paceline diagnose` reads a pod's telemetry over HTTP and says what it found."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from click.testing import CliRunner, Result

from paceline_cli import local_state as state
from paceline_cli.__main__ import main
from paceline_cli.local_state import LocalState
from paceline_testing.telemetry import a_limits, a_request, a_step, a_telemetry
from paceline_tuner import telemetry as answers
from paceline_tuner.service_spec import SLA

TOKEN = "a-token"
NOW = 1000.0
BUSY = a_telemetry(
    NOW,
    limits=a_limits(sla=answers.SlaValues(ttft_p99_ms=500.0)),
    steps=tuple(a_step(i, NOW - 60 + (i + 1) * 0.05) for i in range(1200)),
    requests=tuple(a_request(i, NOW - 50 + i, queue_ms=900.0, ttft_ms=1000.0) for i in range(40)),
)


class Pod(ThreadingHTTPServer):
    """A pod's runtime API that always answers the same."""

    answer: answers.Telemetry = BUSY


class Answering(BaseHTTPRequestHandler):
    """Knows one token."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Pod)
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        body = msgspec.json.encode(self.server.answer) if allowed else b"no"
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Stay quiet."""


@contextmanager
def a_pod(answer: answers.Telemetry = BUSY) -> Iterator[Pod]:
    with Pod(("127.0.0.1", 0), Answering) as server:
        server.answer = answer
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def pod() -> Iterator[Pod]:
    with a_pod() as server:
        yield server


@pytest.fixture
def faster() -> Iterator[Pod]:
    """Twice the requests of `pod`, each in a third of its time; prompts fill its steps."""
    requests = tuple(
        a_request(i, NOW - 50 + i / 2, arrived_at=NOW - 51 + i / 2, ttft_ms=100.0)
        for i in range(80)
    )
    steps = tuple(msgspec.structs.replace(step, prefill=500) for step in BUSY.steps)
    with a_pod(msgspec.structs.replace(BUSY, requests=requests, steps=steps)) as server:
        yield server


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pod: Pod) -> Path:
    """One service runs here: the state file of `paceline up`, and its token."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    state.write(
        tmp_path / "paceline",
        LocalState(
            name="quickstart",
            url="http://127.0.0.1:8000",
            model="quickstart",
            manifest="service.yaml",
            pid=os.getpid(),
            started_at=0.0,
            sla=SLA(),
            report=None,
            decisions=(),
            admin_url=f"http://127.0.0.1:{pod.server_port}",
            token_file=str(token),
        ),
    )
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ("diagnose", *arguments))


def test_the_running_service_is_diagnosed_without_a_word_more() -> None:
    """Verdict, parts, bound and advice on one page."""
    result = run()

    assert result.exit_code == 0, result.output
    for part in (
        "paceline diagnose · quickstart-0",
        "misses the SLA: TTFT p99 1,000 ms, target 500 ms",
        "queue",
        "the engine is bound by memory",
        "what would help",
    ):
        assert part in result.output
    assert max(map(len, result.output.splitlines())) <= 100


def test_a_program_gets_the_same_as_json(pod: Pod, folder: Path) -> None:
    """Through a port that was forwarded by hand."""
    url = f"http://127.0.0.1:{pod.server_port}"

    result = run("--url", url, "--token-file", str(folder / "token"), "--format", "json")

    body = json.loads(result.output)
    assert body["bound"] == "Memory"
    assert body["outcomes"] == {"ok": 40}
    parts = {part["name"]: part["slow_ms"] for part in body["spans"][0]["parts"]}
    assert parts == {"queue": 900.0, "prefill": 100.0}


def test_a_pod_that_says_no_is_told_in_a_sentence(folder: Path) -> None:
    """A wrong token, a pod that is gone, a pod that has served nothing."""
    (folder / "token").write_text("another")

    result = run("quickstart")

    assert result.exit_code == 1
    assert result.output == "Error: pod quickstart-0 answered 401: no\n"


def test_a_pod_that_has_served_nothing_asks_for_requests(pod: Pod) -> None:
    """Not an empty table."""
    pod.answer = a_telemetry(NOW)

    result = run("--seconds", "30")

    assert result.exit_code == 1
    assert "no step ran in the last 30 s: send some requests" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "b", "pod/c"), "name the one service of that one pod"),
        (("pod/c", "pod/d"), "name the one service of that one pod"),
        (("a", "b", "--price-per-hour", "1"), "--price-per-hour is that of one service"),
        (("--url", "http://127.0.0.1:1"), "--url and --token-file go together"),
        (("-n", "team"), "name the service"),
        (("--seconds", "1"), "--seconds"),
    ],
    ids=["a pod of two", "two pods", "a price of two", "no token", "no name", "too short"],
)
def test_what_it_cannot_mean_is_refused(arguments: tuple[str, ...], said: str) -> None:
    """With the usage, and click's own status."""
    result = run(*arguments)

    assert result.exit_code == 2
    assert said in result.output


def test_a_missing_token_file_is_named(folder: Path) -> None:
    """With the option that was wrong."""
    missing = folder / "nowhere"

    result = run("--url", "http://127.0.0.1:1", "--token-file", str(missing))

    assert result.exit_code == 1
    assert result.output == f"Error: --token-file {missing}: No such file or directory\n"


def test_rates_and_the_turning_point_are_told_and_the_cost_where_there_is_a_price(
    folder: Path,
) -> None:
    """The price is the running service's own, or the one that the option names."""
    plain = run().output
    priced = run("--price-per-hour", "5.796").output
    found = state.find(folder / "paceline", None)
    state.write(folder / "paceline", replace(found, price_per_hour=57.96))

    assert "output tokens/s" in plain
    assert "compute bounds it from 20 sequences on; now 8.0 sequences a step" in plain
    assert "cost of 1M tokens" not in plain
    assert "10.0 of output" in priced
    assert "100 of output" in run().output


def several(folder: Path, *pods: Pod) -> list[str]:
    """Name each as a port that was forwarded by hand."""
    token_file = str(folder / "token")
    return [
        word
        for pod in pods
        for word in ("--url", f"http://127.0.0.1:{pod.server_port}", "--token-file", token_file)
    ]


def test_of_several_services_the_slowest_is_named(pod: Pod, faster: Pod, folder: Path) -> None:
    """A pipeline: three seconds in one, one second in the other, which has twice the requests."""
    result = run(*several(folder, faster, pod), "--format", "json")

    body = json.loads(result.output)
    slow, fast = (f"http://127.0.0.1:{each.server_port}" for each in (pod, faster))
    assert body["slowest"] == slow
    assert body["services"] == [
        {
            "name": fast,
            "requests_per_s": pytest.approx(80 / 60, rel=0.01),
            "mean_e2e_ms": pytest.approx(1000.0),
            "share": pytest.approx(0.25),
            "bound": "Compute",
        },
        {
            "name": slow,
            "requests_per_s": pytest.approx(40 / 60, rel=0.01),
            "mean_e2e_ms": pytest.approx(3000.0),
            "share": pytest.approx(0.75),
            "bound": "Memory",
        },
    ]


def test_several_services_are_a_row_each_and_a_sentence(
    pod: Pod, faster: Pod, folder: Path
) -> None:
    """In the order in which they were named; no page of each."""
    result = run(*several(folder, faster, pod))

    rows = [line.split() for line in result.output.splitlines() if "127.0.0.1" in line]
    assert [row[0].rpartition(":")[2] for row in rows[:2]] == [
        str(each.server_port) for each in (faster, pod)
    ]
    assert rows[0][1:] == ["1.33", "1,000", "ms", "25%", "Compute"]
    assert (
        f"http://127.0.0.1:{pod.server_port} is the slowest: 75% of the sum; it is bound by memory"
        in " ".join(result.output.split())
    )
    assert "where latency comes from" not in result.output
    assert max(map(len, result.output.splitlines())) <= 100


def test_services_of_this_machine_are_told_by_their_names(faster: Pod, folder: Path) -> None:
    """As one is."""
    found = state.find(folder / "paceline", None)
    url = f"http://127.0.0.1:{faster.server_port}"
    state.write(folder / "paceline", replace(found, name="ranker", admin_url=url))

    result = run("quickstart", "ranker", "--format", "json")

    assert json.loads(result.output)["slowest"] == "quickstart"


def test_a_service_that_answered_nobody_has_no_share(pod: Pod, faster: Pod, folder: Path) -> None:
    """Its steps ran, and no request has ended yet: the others are told all the same."""
    faster.answer = msgspec.structs.replace(BUSY, requests=())

    result = run(*several(folder, faster, pod), "--format", "json")

    body = json.loads(result.output)
    assert [each["share"] for each in body["services"]] == [None, 1.0]
    assert body["slowest"] == f"http://127.0.0.1:{pod.server_port}"


def test_of_several_services_one_that_cannot_be_told_is_named(
    pod: Pod, faster: Pod, folder: Path
) -> None:
    """A sum without it would be wrong."""
    faster.answer = a_telemetry(NOW)

    result = run(*several(folder, faster, pod))

    assert result.exit_code == 1
    assert f"Error: http://127.0.0.1:{faster.server_port} cannot be diagnosed" in result.output
