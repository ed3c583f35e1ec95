"""Which pods get the candidate. Stable: pods that come and go move no other pod without need."""

import hashlib
from collections.abc import Collection, Iterable

from paceline_tuner.service_spec import ExperimentKind


def candidates(
    name: str,
    kind: ExperimentKind,
    pods: Collection[str],
    share: float,
    current: Collection[str],
) -> frozenset[str]:
    """Choose the candidate's pods out of two or more; the other pods are the base.

    A canary is one pod. Pods that have the candidate keep it; more are drawn by a hash of the
    experiment's and the pod's name, so that two operators draw the same.
    """
    wanted = 1 if kind != "AB" else min(max(1, round(share * len(pods))), len(pods) - 1)
    kept = _drawn(name, [pod for pod in pods if pod in current])[:wanted]
    fresh = _drawn(name, [pod for pod in pods if pod not in current])
    return frozenset((*kept, *fresh[: wanted - len(kept)]))


def _drawn(name: str, pods: Iterable[str]) -> list[str]:
    return sorted(pods, key=lambda pod: (hashlib.sha256(f"{name}/{pod}".encode()).digest(), pod))
