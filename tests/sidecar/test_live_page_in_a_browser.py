"""The page of a pod in a real browser: it asks for the token, and shows the pod's figures."""

from collections.abc import AsyncIterator

import pytest

from paceline_testing.chromium import CHROMIUM, Tab, opened_tab
from paceline_testing.running_sidecar import TOKEN, Sidecar

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no `chromium` on PATH: apt-get install chromium"),
]

IS_SHOWN = "document.querySelectorAll('.latency').length === 3"
IS_ASKED = "!document.getElementById('ask').hidden"


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    async with opened_tab() as opened:
        yield opened


async def give(tab: Tab, token: str) -> None:
    """Type a token and send it, as a person does."""
    await tab.value(f"document.getElementById('token').value = {token!r}")
    await tab.value("document.querySelector('#ask button').click()")


async def test_the_page_asks_for_the_token_and_shows_the_pod(tab: Tab, sidecar: Sidecar) -> None:
    """Nothing is shown before, a wrong token is told so, and the right one is kept nowhere."""
    reason = "ITL binds <b>here</b>"
    sidecar.admin.patch(
        "/runtime/limits",
        json={
            "epoch": 5,
            "lease_s": 60,
            "max_batch_size": 8,
            "reason": reason,
            "sla": {"itl_p99_ms": 400},
            "tuner": {"phase": "Tracking", "verdict": "Meeting", "binding": "SLA:itl"},
        },
    )
    sidecar.openai.completions.create(model="scripted", prompt="Hi")

    await tab.go(f"{sidecar.admin_url}/live")
    await tab.until(IS_ASKED)
    before = await tab.text()
    await give(tab, "another")
    await tab.until("!document.getElementById('wrong').hidden")
    await give(tab, TOKEN)
    await tab.until(IS_SHOWN)
    shown = await tab.text()
    is_asked = await tab.value(IS_ASKED)
    kept = await tab.value("[location.href, document.cookie, localStorage.length].join(' ')")

    assert "scripted" not in before
    for text in ("scripted", "of 400 ms", "✓ met", "batch 64 → 8", reason, "paceline diagnose"):
        assert text in shown
    assert "Tuner: Tracking, bound by SLA:itl, " in shown
    assert "✓ Meeting the SLA" in shown
    assert not is_asked
    assert kept.strip() == f"{sidecar.admin_url}/live  0"
    assert all("401" in each for each in tab.complaints)


@pytest.mark.parametrize("is_open", [False, True], ids=["new", "open"])
async def test_a_token_in_the_address_is_taken_out_of_it(
    tab: Tab, sidecar: Sidecar, is_open: bool
) -> None:
    """A fragment is sent to nobody; nor does it stay in the history of the browser."""
    if is_open:
        await tab.go(f"{sidecar.admin_url}/live")
        await tab.until(IS_ASKED)
    await tab.go(f"{sidecar.admin_url}/live#token={TOKEN}")
    await tab.until(f"document.body && {IS_SHOWN}")

    assert await tab.value("location.href") == f"{sidecar.admin_url}/live"
    assert all("401" in each for each in tab.complaints)


async def test_a_pod_that_leaves_is_told(tab: Tab, sidecar: Sidecar) -> None:
    """What is left on the screen is old then."""
    await tab.go(f"{sidecar.admin_url}/live#token={TOKEN}")
    await tab.until(IS_SHOWN)

    sidecar.leave()

    await tab.until("!document.getElementById('lost').hidden")
    sidecar.join()
