"""What the sidecar says of a loading engine is what `paceline up` draws its bar from."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from paceline_cli.up.loading import LoadingStage, loading_stage, missing_words
from paceline_engine.process.ipc import Link
from paceline_operator.loading import FETCHING
from paceline_operator.pod_client import AiohttpPodClient
from paceline_operator.pod_loading import PodLoading
from paceline_sidecar.zmq_engine import loading_words
from paceline_testing.running_sidecar import start_sidecar
from paceline_testing.waiting import wait_until
from paceline_tuner.service_target import PodTarget
from paceline_wire import Loading


@pytest.mark.parametrize(
    ("stage", "fraction"), [("fetching", 0.0), ("loading weights", 0.43), ("warming up", 1.0)]
)
def test_a_stage_and_its_fraction_are_understood(stage: str, fraction: float) -> None:
    """Through the body of `/health/ready`, beside whatever else is missing."""
    body = json.dumps({"missing": [loading_words(Loading(stage, fraction)), "draining"]})

    words = missing_words(body)

    assert words == f"not ready: the engine is loading: {stage} {fraction:.0%}; draining"
    assert loading_stage(words) == LoadingStage(stage, fraction)


def test_the_operator_reads_how_far_an_engine_is(tmp_path: Path) -> None:
    """From the engine's greeting through a real sidecar; no token is asked for."""
    link, sidecar = Link(tmp_path, time.monotonic), start_sidecar(tmp_path)

    async def ask() -> PodLoading | None:
        async with AiohttpPodClient() as client:
            return await client.get_loading(PodTarget("pod-1", sidecar.admin_url, ""))

    try:
        link.greet(Loading("fetching", 0.43))
        wait_until(lambda: asyncio.run(ask()) == PodLoading(FETCHING, 0.43))
    finally:
        sidecar.leave()
        sidecar.join()
        link.close()


def test_what_is_no_loading_draws_no_bar() -> None:
    """Nor does an answer that is none of the sidecar's."""
    assert loading_stage("serving") is None
    assert missing_words("<html>bad gateway</html>") == "not ready: <html>bad gateway</html>"
    assert missing_words("[]") == "not ready: []"
