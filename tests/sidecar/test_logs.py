"""A log tells what happened and where: no key, no token, no prompt."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_sidecar.logs import QuietFormatter, report_fault
from paceline_testing.kept_secrets import KEPT, leaks, listen, remember
from paceline_testing.running_sidecar import TOKEN, Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until

_PROMPT = "a prompt that nobody else may read"
_KEY = "a-key-that-nobody-else-may-read"


def test_the_suite_hears_a_sidecar_that_tells_a_prompt(sidecar: Sidecar) -> None:
    """The check can fail: what a test has sent is found in a line that quotes it."""
    body = {"model": "scripted", "prompt": _PROMPT}
    headers = {"authorization": f"Bearer {_KEY}"}
    assert sidecar.public.post("/v1/completions", json=body, headers=headers).status_code == 200
    assert not leaks(KEPT.take())

    log = logging.getLogger("paceline_sidecar.routes")
    log.warning("refused %s with %s and %s", _PROMPT, _KEY, TOKEN)

    assert leaks(KEPT.take()) == sorted([_PROMPT, _KEY, TOKEN])


_REQUESTS: dict[str, dict[str, Any]] = {
    "served or refused by the engine": {"prompt": _PROMPT},
    "a field too many": {"prompt": _PROMPT, "temperature": _PROMPT},
    "an unknown model": {"prompt": _PROMPT, "model": _PROMPT},
    "a bad template's chat": {"messages": [{"role": _PROMPT, "content": _PROMPT}]},
    "a bad tool": {"messages": [{"role": "user", "content": _PROMPT}], "tools": [_PROMPT]},
    "a bad schema": {"prompt": _PROMPT, "guided_json": {"type": _PROMPT}},
}


@pytest.mark.parametrize("error", [None, "out of memory"], ids=["served", "failed"])
def test_whatever_becomes_of_a_request_its_texts_stay_out_of_the_log(
    run_dir: Path, start: Callable[..., Sidecar], error: str | None
) -> None:
    """On every path, with a key that is right and one that is not."""
    path = run_dir / "keys"
    path.write_text(f"team-a: {_KEY}\n")
    remember(_PROMPT, _KEY, "a-wrong-key-of-somebody")
    with ScriptedEngine(run_dir, Script(error=error)):
        sidecar = start(api_keys_file=path)
        wait_until(sidecar.ready)
        for key in (_KEY, "a-wrong-key-of-somebody"):
            headers = {"authorization": f"Bearer {key}"}
            for body in _REQUESTS.values():
                kind = "chat/completions" if "messages" in body else "completions"
                content = {"model": "scripted", **body}
                sidecar.public.post(f"/v1/{kind}", json=content, headers=headers)
            broken = httpx.post(
                f"{sidecar.url}/v1/completions",
                content=f'{{"prompt": "{_PROMPT}',
                headers=headers,
                timeout=60,
            )
            assert broken.status_code in {400, 401}
        sidecar.leave()
        sidecar.join()

    log = KEPT.take()
    assert "listening: public" in log
    assert not leaks(log)


def test_an_exception_is_logged_without_its_text() -> None:
    """Texts of exceptions quote what could not be read; the way to the line stays."""
    with pytest.raises(ExceptionGroup) as caught:
        _fail_with_what_was_told()

    text = QuietFormatter().formatException((caught.type, caught.value, caught.tb))

    assert _PROMPT not in text
    assert _KEY not in text
    assert "ValueError\nwhich led to:" in text
    assert "RuntimeError" in text
    assert "in _fail_with_what_was_told" in text


def _fail_with_what_was_told() -> None:
    try:
        int(_PROMPT)  # its error quotes what it was given
    except ValueError as error:
        raise ExceptionGroup(_KEY, [RuntimeError(_PROMPT), error]) from error


async def test_a_task_that_nobody_awaits_is_logged_without_its_text() -> None:
    """Asyncio's own handler shows the exception as Python writes it."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report_fault)
    listen()

    loop.call_exception_handler({"message": "a task failed", "exception": ValueError(_PROMPT)})

    log = KEPT.take()
    assert "a task failed" in log
    assert "ValueError" in log
    assert _PROMPT not in log
