"""What the kubelet says of a pod that cannot start is asked for late, seldom and for one pod."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from paceline_api.labels import Manifest
from paceline_operator.held_up import HeldUpPods
from paceline_operator.observe import HeldUp, Observation, ObservedPod, observe
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.services import a_live_service, a_pod, a_service

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_NOTE = 'MountVolume.SetUp failed for volume "tls" : secret "cert" not found'


def _waiting(name: str = "quick-1", *, for_s: float = 10) -> ObservedPod:
    since = _NOW - timedelta(seconds=for_s)
    return a_pod(name, is_ready=False, has_sandbox=False, scheduled_at=since)


def _observed(*pods: ObservedPod) -> Observation:
    return Observation(a_service(), children={}, pods=pods, report=None, now=_NOW)


def _event(pod: str, note: str, *, reason: str = "FailedMount", at: str = "00") -> Manifest:
    return {
        "kind": "Event",
        "metadata": {"name": f"{pod}.{reason}.{at}", "namespace": "default"},
        "regarding": {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"},
        "type": "Warning",
        "reason": reason,
        "deprecatedLastTimestamp": f"2026-01-01T00:00:{at}Z",
        "eventTime": None,
        "note": note,
    }


def _cluster(*events: Manifest) -> FakeCluster:
    return FakeCluster({("Event", event["metadata"]["name"]): event for event in events})


async def test_the_newest_word_of_the_kubelet_counts() -> None:
    """Other pods' events, and what does not hold up a pod, are not looked at."""
    cluster = _cluster(
        _event("quick-1", "an older one"),
        _event("quick-1", _NOTE, at="05"),
        _event("quick-1", "slow probe", reason="Unhealthy", at="09"),
        _event("other-1", "another pod's", at="09"),
    )

    found = await HeldUpPods(cluster, ManualClock()).explain(_observed(_waiting()))

    assert found.held_up == HeldUp("quick-1", _NOTE)


async def test_a_pod_is_given_time_to_start() -> None:
    """Every pod waits for its volumes for a moment."""
    cluster = _cluster(_event("quick-1", _NOTE))

    found = await HeldUpPods(cluster, ManualClock()).explain(_observed(_waiting(for_s=9)))

    assert found.held_up is None
    assert cluster.finds == []


async def test_a_pod_that_started_costs_nothing() -> None:
    cluster = _cluster(_event("quick-1", _NOTE))

    found = await HeldUpPods(cluster, ManualClock()).explain(_observed(a_pod()))

    assert found.held_up is None
    assert cluster.finds == []


async def test_one_list_in_fifteen_seconds_however_many_pods_wait() -> None:
    """Reconciles come every few seconds."""
    cluster, clock = _cluster(_event("quick-1", _NOTE)), ManualClock()
    held_up = HeldUpPods(cluster, clock)
    waiting = _observed(_waiting("quick-1"), _waiting("quick-2"))

    for _ in range(30):
        assert (await held_up.explain(waiting)).held_up == HeldUp("quick-1", _NOTE)
        clock.advance(1)

    assert cluster.finds == ["Event regarding.uid=uid-quick-1,type=Warning"] * 2


async def test_it_is_forgotten_once_the_pod_starts() -> None:
    """A later pod is asked about anew."""
    cluster, clock = _cluster(_event("quick-1", _NOTE)), ManualClock()
    held_up = HeldUpPods(cluster, clock)
    await held_up.explain(_observed(_waiting()))

    started = await held_up.explain(_observed(a_pod()))

    assert started.held_up is None
    again = await held_up.explain(_observed(_waiting()))
    assert again.held_up is not None
    assert len(cluster.finds) == 2


async def test_without_an_answer_the_pod_is_only_starting() -> None:
    """An explanation is a courtesy: the rest of status is written."""
    cluster = _cluster(_event("quick-1", _NOTE))
    cluster.is_reachable = False

    found = await HeldUpPods(cluster, ManualClock()).explain(_observed(_waiting()))

    assert found.held_up is None


class _OnePod:
    """`Watched`, of one service and its one pod."""

    def __init__(self, pod: Manifest) -> None:
        self.pod = pod

    def keys(self) -> list[str]:
        return ["default/quick"]

    def service(self, key: str) -> Manifest:
        del key
        return a_live_service()

    def children(self, key: str) -> list[Manifest]:
        del key
        return []

    def pods(self, key: str) -> list[Manifest]:
        del key
        return [self.pod]

    def owned(self) -> list[tuple[str, Manifest]]:
        return []


def test_waiting_for_volumes_is_read_from_the_pods_conditions() -> None:
    """As the kubelet writes them, before any container has a state."""
    conditions = [
        {
            "type": "PodScheduled",
            "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
        {"type": "PodReadyToStartContainers", "status": "False"},
    ]
    raw = {
        "metadata": {"name": "quick-1", "uid": "u"},
        "spec": {"nodeName": "n1"},
        "status": {"conditions": conditions},
    }

    found = observe(_OnePod(raw), "default/quick", None, _NOW)
    assert found is not None
    (pod,) = found.pods

    assert (pod.uid, pod.scheduled_at, pod.waits_for_volumes) == ("u", _NOW, True)
    assert not replace(pod, has_sandbox=True).waits_for_volumes
    assert not replace(pod, is_leaving=True).waits_for_volumes
    assert not replace(pod, node="").waits_for_volumes
