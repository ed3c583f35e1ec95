"""Pods that load their model are asked how far they are; status shows the one with most to do."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline_operator.loading import LoadingPods
from paceline_operator.observe import ContainerStatus, Observation, ObservedPod
from paceline_operator.pod_conditions import model_available
from paceline_operator.pod_loading import PodLoading
from paceline_operator.service_status import service_status
from paceline_operator.write_plan import plan_writes
from paceline_testing.clock import ManualClock
from paceline_testing.services import a_pod, a_service
from paceline_tuner.pods import PodUnreachableError
from paceline_tuner.service_target import PodTarget

_HF: dict[str, Any] = {"model": {"uri": "hf://org/name", "revision": "abc"}}
_STARTING = a_pod(is_ready=False, engine=ContainerStatus(is_running=True))


class Pods:
    """Answers for each pod by its name; one that is not listed does not answer."""

    def __init__(self, **answers: PodLoading | None) -> None:
        self.answers = answers
        self.asked: list[PodTarget] = []

    async def get_loading(self, pod: PodTarget) -> PodLoading | None:
        self.asked.append(pod)
        if pod.name not in self.answers:
            raise PodUnreachableError(pod.name)
        return self.answers[pod.name]


def _observed(*pods: ObservedPod, **spec: Any) -> Observation:
    return Observation(a_service(**spec), {}, pods, None, datetime.now(UTC))


async def test_the_pod_with_most_to_do_is_shown() -> None:
    """A download comes before everything else, and the service waits for the last one."""
    pods = Pods(
        a=PodLoading("loading weights", 0.1),
        b=PodLoading("fetching", 0.9),
        c=PodLoading("fetching", 0.4),
        d=None,
    )
    starting = [replace(_STARTING, name=name) for name in "abcde"]

    seen = await LoadingPods(pods, ManualClock()).look(_observed(*starting, **_HF))

    assert seen.loading == PodLoading("fetching", 0.4)


async def test_only_pods_that_load_are_asked_and_seldom() -> None:
    """No token is sent; a pod's address may have gone to another."""
    pods, clock = Pods(a=PodLoading("fetching", 0.4)), ManualClock()
    looking = LoadingPods(pods, clock)
    observed = _observed(replace(_STARTING, name="a"), a_pod("ready"), **_HF)

    await looking.look(observed)
    clock.advance(1)
    again = await looking.look(observed)
    assert again.loading == PodLoading("fetching", 0.4)
    assert [(pod.name, pod.token) for pod in pods.asked] == [("a", "")]

    clock.advance(5)
    await looking.look(observed)
    assert len(pods.asked) == 2
    assert (await looking.look(_observed(a_pod("ready"), **_HF))).loading is None


@pytest.mark.parametrize(
    ("spec", "loading", "reason"),
    [
        (_HF, PodLoading("fetching", 0.4), "Downloading"),
        (_HF, PodLoading("loading weights", 0.4), "Loading"),
        (_HF, None, "Downloading"),
        ({}, PodLoading("fetching", 0.0), "Loading"),
    ],
    ids=["it downloads", "it has downloaded", "it does not say", "there is nothing to download"],
)
def test_a_download_is_told_from_the_rest(
    spec: dict[str, Any], loading: PodLoading | None, reason: str
) -> None:
    """The numbers stand in a field, not in the condition."""
    observed = replace(_observed(_STARTING, **spec), loading=loading)

    condition = model_available(observed)
    status = service_status(observed, plan_writes(observed.service.spec), [condition])

    assert (condition.status, condition.reason) == ("False", reason)
    assert "40" not in condition.message
    shown = status.loading and (status.loading.stage, status.loading.percent)
    assert shown == (loading and (loading.stage, int(100 * loading.fraction)))
