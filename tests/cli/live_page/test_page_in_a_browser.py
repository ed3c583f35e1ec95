"""The page in a real browser: it shows what it is sent, as text, and says when it is cut off."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from paceline_cli.live_page.server import LivePage
from paceline_cli.place import Place
from paceline_cli.up.live import LiveService
from paceline_cli.up.screen import LiveView
from paceline_testing.chromium import CHROMIUM, Tab, opened_tab
from paceline_testing.reports import a_change, a_pod_report, a_report, observed
from paceline_testing.services import a_service
from paceline_testing.telemetry import a_request, a_step, a_telemetry
from paceline_tuner import telemetry as answers
from paceline_tuner.service_report import ServiceReport, TokenCost
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no `chromium` on PATH: apt-get install chromium"),
]

NOW = 1_700_000_000.0
EVIL = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


class ScriptedPod:
    """A pod's runtime API, where every reading is a tenth of a second later than the last."""

    def __init__(self) -> None:
        self._now = NOW

    async def get_telemetry(self, pod: PodTarget, since: int) -> answers.Telemetry:
        del pod, since
        self._now += 0.1
        return a_telemetry(
            self._now,
            load=answers.Load(running=7, waiting=3, waiting_tokens=90, oldest_waiting_s=1.5),
            steps=tuple(a_step(i, NOW - 60 + i / 10, decode=i % 5) for i in range(600)),
            requests=tuple(a_request(i, NOW - 50 + i) for i in range(40)),
        )

    async def patch_limits(
        self, pod: PodTarget, body: Mapping[str, object]
    ) -> answers.LimitsAnswer:
        raise AssertionError(f"the page changes nothing: {pod}, {body}")


class Scripted:
    """A page whose view a test sets."""

    def __init__(self, folder: Path) -> None:
        self.live = LiveService(
            folder / "service.yaml", a_service(), Place(folder, "127.0.0.1", 1, 2), "token"
        )
        self.view = LiveView(
            name="quickstart",
            model="builtin://m",
            url="http://127.0.0.1:8000",
            spec=TuningSpec(sla=SLA(ttft_p99_ms=8000.0, itl_p99_ms=400.0)),
            state="loading the model",
            report=None,
        )
        self.page = LivePage(self.live, ScriptedPod(), lambda: self.view, every_s=0.05)

    def serve(self, *reports: ServiceReport) -> None:
        """Have the service ready, with these ticks behind it."""
        self.live.became(is_ready=True, phase="serving")
        for report in reports:
            self.view = replace(self.view, state="serving", report=report)
            self.live.concluded(report, ())


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path)


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    async with opened_tab() as opened:
        yield opened


async def test_the_page_shows_the_service_and_complains_of_nothing(
    tab: Tab, scripted: Scripted
) -> None:
    """Latencies beside targets, load, limits, decisions and advice; no error in the console."""
    ticks = [a_report(at=NOW - 60 + 5 * i, history=(a_change(at=NOW - 30),)) for i in range(12)]
    late = a_pod_report(observed=observed(itl_p99_ms=1200.0), verdict="Violating")
    scripted.serve(*ticks, a_report(at=NOW, pods=(late,), cost=TokenCost(1.2345, 0.5)))

    async with scripted.page.served() as address:
        await tab.go(address)
        await tab.until("document.querySelectorAll('.latency').length === 3")
        shown = await tab.text()
        paths = await tab.value(
            "[...document.querySelectorAll('.curve')].map((each) => each.getAttribute('d').length)"
        )
        num_bars = await tab.value("document.querySelectorAll('.bar').length")
        is_warned = await tab.value("!document.getElementById('state').hidden")

    for text in (
        "quickstart", "builtin://m", "1,200 ms", "of 400 ms", "✗ 3.0 times the target", "✓ met",
        "✗ Violating the SLA", "SLA:itl", "Tracking", "tokens 2048 → 160", "ITL binds", "1.5 s",
        "1.23", "cost of 1M output tokens",
    ):  # fmt: skip
        assert text in shown
    assert min(paths) > 100
    assert num_bars == 5
    assert not is_warned
    assert tab.complaints == []


async def test_what_comes_from_outside_is_text(tab: Tab, scripted: Scripted) -> None:
    """A model's name or a reason that holds HTML is read, never run."""
    change = a_change(at=NOW, reason=EVIL)
    pod = a_pod_report(reason=EVIL, binding=EVIL, error=EVIL, last_change=change)
    scripted.view = replace(scripted.view, name=EVIL, model=EVIL, banner=EVIL, events=(EVIL,))
    scripted.serve(a_report(at=NOW, pods=(pod,), history=(change,)))

    async with scripted.page.served() as address:
        await tab.go(address)
        await tab.until("document.querySelectorAll('.latency').length === 3")
        title = await tab.value("document.title")
        num_made = await tab.value("document.querySelectorAll('img, main script').length")
        name = await tab.text("#name")

    assert title == f"{EVIL} · Paceline"
    assert name == EVIL
    assert num_made == 0
    assert tab.complaints == []


async def test_the_policy_stops_a_script_that_is_not_the_pages_own(
    tab: Tab, scripted: Scripted
) -> None:
    """Should text ever become HTML, it still does not run and loads nothing."""
    async with scripted.page.served() as address:
        await tab.go(address)
        await tab.until("document.querySelectorAll('.latency').length === 3")
        await tab.value(f"document.body.insertAdjacentHTML('beforeend', {EVIL!r})")
        await tab.value(
            "document.body.append(Object.assign(document.createElement('script'),"
            " {textContent: 'window.isBroken = true'}))"
        )
        is_broken = await tab.value("window.isBroken === true || document.title === 'broken'")

    assert not is_broken


async def test_loading_and_a_dead_engine_are_shown(tab: Tab, scripted: Scripted) -> None:
    """Each bad state has its words; the page follows without being loaded again."""
    async with scripted.page.served() as address:
        await tab.go(address)
        await tab.until("document.body.innerText.includes('Starting: loading the model')")
        scripted.view = replace(
            scripted.view, state="not ready: the engine is loading: loading weights 42%"
        )
        await tab.until("document.body.innerText.includes('Loading: loading weights, 42 %')")
        progress = await tab.value("document.getElementById('progress').value")
        scripted.view = replace(scripted.view, state="restarting the engine")
        await tab.until("document.body.innerText.includes('Not serving: restarting the engine')")
        scripted.serve(a_report(at=NOW))
        await tab.until("document.getElementById('state').hidden")

    assert progress == 0.42
    assert tab.complaints == []


async def test_a_lost_connection_is_told_and_mends_itself(tab: Tab, scripted: Scripted) -> None:
    """A page that is left open says that what it shows is old, and goes on when it can."""
    scripted.serve(a_report(at=NOW))
    async with contextlib.AsyncExitStack() as first:
        address = await first.enter_async_context(scripted.page.served())
        await tab.go(address)
        await tab.until("document.querySelectorAll('.latency').length === 3")
        assert await tab.value("document.getElementById('lost').hidden")
    await tab.until("!document.getElementById('lost').hidden")

    port = int(address.rsplit(":", 1)[1].strip("/"))
    async with scripted.page.served(port):
        await tab.until("document.getElementById('lost').hidden")
