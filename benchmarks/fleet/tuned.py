"""The tuner's process: the operator's own rounds, loop and client, over a fleet of pods."""

import asyncio
import gc
import json
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet.sidecars import PODS_A_SERVICE, address, uid
from fleet.sidecars import name as pod_name
from paceline_api.labels import Manifest
from paceline_operator import garbage
from paceline_operator.fence import Fence
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.pod_client import AiohttpPodClient
from paceline_operator.rounds import Rounds
from paceline_operator.sharding.shard import Program
from paceline_operator.sharding.shards import Shards
from paceline_operator.sharding.warm_starts import SharedWarmStart
from paceline_operator.tuning import Tuner, Tuning
from paceline_testing.awaiting import until
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.services import a_live_service
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import PodReport, ServiceReport
from paceline_tuner.warm_start import WarmStart

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
            service["metadata"]["uid"] = uid(number)
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


@dataclass(frozen=True, slots=True)
class Used:
    """The processor time and memory that one process has used so far."""

    cpu_s: float
    rss_bytes: int

    @classmethod
    def by(cls, pid: int | str) -> "Used":
        """Read it of a process of this machine."""
        folder = Path(f"/proc/{pid}")
        user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        pages = int((folder / "statm").read_text().split()[1])
        ticks_s = os.sysconf("SC_CLK_TCK")
        return cls((int(user) + int(system)) / ticks_s, pages * resource.getpagesize())


@dataclass(slots=True)
class Tuned:
    """The tuner in this process or in several beside it, and what it uses."""

    fleet: Fleet
    tuning: Tuning
    pace: Pace
    leader: Leader
    num_processes: int
    shards: Shards | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Lead, and tune what is followed."""
        async with AiohttpPodClient(check_leadership=self.leader.check) as client:
            works = (self._tuner(client).run(), self.leader.run(lambda: True))
            tasks = [asyncio.create_task(work) for work in works]
            tasks.append(asyncio.create_task(self.tuning.run()))
            if (shards := self.shards) is not None:
                await until(lambda: all(shard.is_up for shard in shards.shards))
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _tuner(self, client: AiohttpPodClient) -> Tuner:
        if self.num_processes == 1:
            loop = TuningLoop(client, time.time)
            self.tuning.tuner = Rounds(loop, self.pace, Fence(time.monotonic))
        else:
            shared, program = SharedWarmStart(_NoStore()), Program("warning")
            self.tuning.tuner = self.shards = Shards(
                self.pace, shared, Metrics(), self.num_processes, program
            )
        return self.tuning.tuner

    def pids(self) -> list[int | None]:
        """Give the process of each shard; none without shards."""
        return [shard.pid for shard in self.shards.shards] if self.shards else []

    def used(self) -> dict[str, Used]:
        """Read what each process has used; a shard's is missing while it is away."""
        found = {"operator": Used.by("self")}
        for number, pid in enumerate(self.pids()):
            if pid is not None:
                found[f"shard {number}"] = Used.by(pid)
        return found


class _NoStore:
    """WarmStartStore that keeps nothing."""

    async def load(self) -> WarmStart:
        return WarmStart()

    async def save(self, warm_start: WarmStart) -> None:
        """Forget it."""


async def tune(
    num_pods: int, warm_s: float, seconds: float, num_processes: int
) -> dict[str, object]:
    """Fill the windows, then measure."""
    fleet = Fleet(num_pods)
    leader = Leader(FakeCluster(), "paceline", "lease", "one", time.monotonic)
    owners = (leader,) * num_processes
    tuning = Tuning(fleet, lambda _: "token", lambda _: None, lambda _: True, Metrics(), owners)
    tuned = Tuned(fleet, tuning, Pace(tuning), leader, num_processes)
    async with tuned.running():
        gc.collect()
        empty = tuned.used()
        for key in fleet.services:  # as the workers of the operator's queue come to them
            tuning.follow(key)
            await asyncio.sleep(_FOLLOW_S)
        await asyncio.sleep(warm_s)
        print(json.dumps(tuned.pids()), flush=True)
        tuned.pace.late_s.clear()
        tuned.pace.counts.clear()
        began, before = time.monotonic(), tuned.used()
        await asyncio.sleep(seconds)
        took, after = time.monotonic() - began, tuned.used()
        return _found(tuned, took, empty, before, after)


def _found(
    tuned: Tuned,
    took: float,
    empty: Mapping[str, Used],
    before: Mapping[str, Used],
    after: Mapping[str, Used],
) -> dict[str, object]:
    pace, num_pods, polls = tuned.pace, tuned.fleet.num_pods, tuned.pace.counts["polls"]
    # A process that was started meanwhile has used what it has.
    cpu = {
        name: used.cpu_s - (before[name].cpu_s if used.cpu_s >= before[name].cpu_s else 0.0)
        for name, used in after.items()
    }
    grown = sum(used.rss_bytes - empty[name].rss_bytes for name, used in after.items())
    reports = tuned.tuning.reports.values()
    return {
        "pods": num_pods,
        "processes": tuned.num_processes,
        "seconds": took,
        "decisions_a_second": (polls - pace.counts["polls lost"]) / took,
        "polls_due": num_pods * took / INTERVAL_S,
        "late_p50_s": pace.quantile(0.5),
        "late_p99_s": pace.quantile(0.99),
        "late_max_s": pace.quantile(1.0),
        "tuner_cores": sum(cpu.values()) / took,
        "tuner_cpu_ms_a_decision": sum(cpu.values()) / max(polls, 1) * 1e3,
        "tuner_rss_mib": sum(used.rss_bytes for used in after.values()) / 2**20,
        "kib_a_pod": grown / num_pods / 2**10,
        "cores_by_process": {name: used / took for name, used in cpu.items()},
        "rss_mib_by_process": {name: used.rss_bytes / 2**20 for name, used in after.items()},
        "counts": dict(pace.counts),
        "verdicts": dict(Counter(pod.verdict for report in reports for pod in report.pods)),
        "errors": dict(
            Counter(
                re.sub("(of |pod )s[-0-9]+", r"\1X", pod.error)[:60]
                for report in reports
                for pod in report.pods
                if pod.error
            )
        ),
    }


if __name__ == "__main__":
    pods, warm, lasting, processes = sys.argv[1:5]
    garbage.look_seldom()  # as the operator does
    found = asyncio.run(tune(int(pods), float(warm), float(lasting), int(processes)))
    print(json.dumps(found))
