"""The tuner's process: the operator's own rounds, loop and client, over a fleet of pods."""

import asyncio
import gc
import json
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fleet.sidecars import PODS_A_SERVICE, address
from fleet.sidecars import name as pod_name
from paceline_api.labels import Manifest
from paceline_operator.fence import Fence
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.pod_client import AiohttpPodClient
from paceline_operator.rounds import Rounds
from paceline_operator.tuning import Tuning
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.services import a_live_service
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import PodReport, ServiceReport

INTERVAL_S = 5.0
_FOLLOW_S = 0.01
_SLA = {"ttft": {"p99": "1s"}, "itl": {"p99": "50ms"}}


@dataclass(slots=True)
class Fleet:
    """The services as the watches would know them, three pods each."""

    num_pods: int
    services: dict[str, Manifest] = field(init=False, default_factory=dict)
    of_service: dict[str, list[Manifest]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Make the manifests once."""
        for number in range(self.num_pods // PODS_A_SERVICE):
            name = f"s{number:04}"
            service = a_live_service(name, sla=_SLA)
            service["metadata"]["uid"] = f"{number:08x}-0000-4000-8000-{hash_of(name):012x}"
            self.services[f"default/{name}"] = service
            first = number * PODS_A_SERVICE
            self.of_service[f"default/{name}"] = [
                _pod(pod_name(pod), address(pod)) for pod in range(first, first + PODS_A_SERVICE)
            ]

    def keys(self) -> Iterable[str]:
        """Name the services."""
        return self.services

    def service(self, key: str) -> Manifest | None:
        """Give one of them."""
        return self.services.get(key)

    def children(self, key: str) -> Iterable[Manifest]:  # noqa: ARG002 - it has none
        """Tuning needs none."""
        return ()

    def pods(self, key: str) -> Iterable[Manifest]:
        """Give the three pods of a service."""
        return self.of_service[key]

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        """Tuning needs none."""
        return ()


def hash_of(name: str) -> int:
    """Give a number of 48 bits that looks drawn, and is the same in each run."""
    return int.from_bytes(name.encode(), "big") * 0x9E3779B97F4A7C15 % 2**48


def _pod(name: str, ip: str) -> Manifest:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {}},
        "spec": {"nodeName": "node"},
        "status": {
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True"}],
            "initContainerStatuses": [{"name": "sidecar", "state": {"running": {}}}],
        },
    }


@dataclass(slots=True)
class Pace:
    """Hears each round's end before the operator does: what came of it, and how late it was."""

    tuning: Tuning
    ended_at: dict[str, float] = field(default_factory=dict)
    late_s: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def concluded(self, uid: str, report: ServiceReport) -> None:
        """Note the end of a round."""
        now = time.monotonic()
        if report.key in self.ended_at:
            self.late_s.append(max(0.0, now - self.ended_at[report.key] - INTERVAL_S))
        self.ended_at[report.key] = now
        self.counts["polls"] += len(report.pods)
        self.counts["polls lost"] += sum(_is_lost(pod) for pod in report.pods)
        self.tuning.concluded(uid, report)

    def failed(self, key: str) -> None:
        """Note a round that failed."""
        self.counts["rounds failed"] += 1
        self.tuning.failed(key)

    def quantile(self, share: float) -> float:
        """Give the lateness that this share of the rounds did not exceed; seconds."""
        late = sorted(self.late_s)
        return late[int(share * (len(late) - 1))] if late else 0.0


def _is_lost(pod: PodReport) -> bool:
    """Whether nothing came of the poll: no answer, or none that can be believed."""
    return bool(pod.error) and " answered " not in pod.error  # that is a change refused


async def tune(num_pods: int, warm_s: float, seconds: float) -> dict[str, object]:
    """Fill the windows, then measure."""
    fleet = Fleet(num_pods)
    tuning = Tuning(fleet, lambda _: "token", lambda _: None, lambda _: True, Metrics())
    pace = Pace(tuning)
    leader = Leader(FakeCluster(), "paceline", "lease", "one", time.monotonic)
    async with AiohttpPodClient(check_leadership=leader.check) as client:
        tuning.tuner = Rounds(TuningLoop(client, time.time), pace, Fence(time.monotonic))
        tasks = [
            asyncio.create_task(leader.run(lambda: True)),
            asyncio.create_task(tuning.run(leader)),
        ]
        gc.collect()
        empty = _rss()
        for key in fleet.services:  # as the workers of the operator's queue come to them
            tuning.follow(key)
            await asyncio.sleep(_FOLLOW_S)
        await asyncio.sleep(warm_s)
        print("begun", flush=True)
        pace.late_s.clear()
        pace.counts.clear()
        began, cpu = time.monotonic(), _cpu_s()
        await asyncio.sleep(seconds)
        took, cpu = time.monotonic() - began, _cpu_s() - cpu
        polls = pace.counts["polls"]
        verdicts = Counter(pod.verdict for report in tuning.reports.values() for pod in report.pods)
        errors = Counter(
            re.sub("(of |pod )s[-0-9]+", r"\\1X", pod.error)[:60]
            for report in tuning.reports.values()
            for pod in report.pods
            if pod.error
        )
        full = _rss()
        for task in tasks:
            task.cancel()
        await tuning.tuner.stop()
    return {
        "pods": num_pods,
        "seconds": took,
        "decisions_a_second": (polls - pace.counts["polls lost"]) / took,
        "polls_due": num_pods * took / INTERVAL_S,
        "late_p50_s": pace.quantile(0.5),
        "late_p99_s": pace.quantile(0.99),
        "late_max_s": pace.quantile(1.0),
        "tuner_cores": cpu / took,
        "tuner_cpu_ms_a_decision": cpu / max(polls, 1) * 1e3,
        "tuner_rss_mib": full / 2**20,
        "kib_a_pod": (full - empty) / num_pods / 2**10,
        "counts": dict(pace.counts),
        "verdicts": dict(verdicts),
        "errors": dict(errors),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    pods, warm, lasting = sys.argv[1:4]
    print(json.dumps(asyncio.run(tune(int(pods), float(warm), float(lasting)))))
