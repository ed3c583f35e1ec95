"""How long a service's pods take to start, which a recommendation looks ahead by."""

from datetime import UTC, datetime

import pytest

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.observe import Observation, ObservedPod, observe
from paceline_operator.tuning import start_s
from paceline_testing.services import a_live_service, a_pod, a_service

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class _OnePod:
    """A watch that knows one service with one pod."""

    def __init__(self, raw: Manifest) -> None:
        self._raw = raw

    def keys(self) -> list[str]:
        return ["default/quick"]

    def owned(self) -> list[tuple[str, Manifest]]:
        return []

    def service(self, key: str) -> Manifest:  # noqa: ARG002 - there is one
        return a_live_service()

    def children(self, key: str) -> list[Manifest]:  # noqa: ARG002
        return []

    def pods(self, key: str) -> list[Manifest]:  # noqa: ARG002
        return [self._raw]


def _observed(*pods: ObservedPod, service: InferenceService | None = None) -> Observation:
    return Observation(service or a_service(), children={}, pods=pods, report=None, now=_NOW)


def _read(ready: Manifest) -> float | None:
    raw = {
        "metadata": {"name": "quick-1", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"conditions": [{"type": "Ready"} | ready]},
    }
    found = observe(_OnePod(raw), "default/quick", None, _NOW)
    assert found is not None
    (pod,) = found.pods
    return pod.started_in_s


def test_a_start_is_from_creation_to_readiness() -> None:
    assert _read({"status": "True", "lastTransitionTime": "2026-01-01T00:01:40Z"}) == 100.0


@pytest.mark.parametrize(
    "ready",
    [{"status": "False", "lastTransitionTime": "2026-01-01T00:01:40Z"}, {"status": "True"}],
    ids=["not ready", "no time"],
)
def test_a_pod_that_has_not_started_says_nothing(ready: Manifest) -> None:
    assert _read(ready) is None


def test_the_usual_pod_is_believed() -> None:
    """Neither the one whose image was there already, nor one that was unready for a while."""
    pods = [a_pod(f"quick-{n}", started_in_s=s) for n, s in enumerate((20.0, 100.0, 90_000.0))]

    assert start_s(_observed(*pods)) == 100.0


def test_no_pod_starts_for_longer_than_it_may() -> None:
    """`rollout.startupSeconds` is 1800 unless the service says otherwise."""
    assert start_s(_observed(a_pod(started_in_s=90_000.0))) == 1800.0


def test_without_a_pod_nothing_is_known() -> None:
    assert start_s(_observed()) == 0.0
    assert start_s(_observed(a_pod())) == 0.0
