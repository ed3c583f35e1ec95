"""Kubernetes' autoscaler and KEDA on one ramp, by what they read: the parts are real, devices not.

    PYTHONPATH=benchmarks:tests python -m autoscale.real

Four services of the same kind get the same requests at the same time; each has an autoscaler of its
own, and the oracle's replicas are written by a schedule. The control plane, KEDA, Prometheus and
its operator, Paceline's operator, every sidecar, scheduler, pacer and tuner are the real ones. Pods
are processes, and their devices only take time (`paceline_testing.timed_engine`): so a machine of
two cores runs a dozen. A pod's "loading" takes half a minute on purpose. Writes
benchmarks/results/autoscale/real.json and .md; `make pictures` draws them. Builds KEDA at first:
half an hour on one core. CPU is not compared here, as devices that only take time use none.
"""

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Final

import httpx

from autoscale.arms import Oracle
from autoscale.ramp import Ramp
from local_cluster import start
from local_cluster.cluster import Cluster
from local_cluster.keda import keda
from local_cluster.monitoring import Stack
from paceline_cli.traffic.client_span import is_met, whole_ms
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.open_loop import Asking, drive_open
from paceline_cli.traffic.prompts import long_excerpt
from paceline_cli.traffic.record import ClientRecord
from paceline_testing.examples import documents_of
from paceline_testing.monitored_service import HOME, monitored_chart
from paceline_testing.process_node import ProcessNode, api
from paceline_testing.waiting import wait_until
from paceline_tuner.service_spec import SLA

Json = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results" / "autoscale"
ORACLE: Final = "oracle"
ARMS: Final = {
    ORACLE: "oracle: knows the ramp",
    "recommended": "recommendedReplicas (examples/keda.yaml)",
    "waiting": "5 waiting requests a pod",
    "in-flight": "requests in flight, by a load test",
}
"""By the name of the service."""
_TARGETS: Final = SLA(ttft_p99_ms=4000.0, tpot_p99_ms=400.0)
_OUTPUT, _PROMPT = 16, 32
_SLOWDOWN: Final = "4"
"""Steps of eight rows take a fifth of a second: a pod serves two requests a second."""
_LOAD_S: Final = 30.0
_COLD_S: Final = 40.0
"""What the oracle allows for a start: the load, and two processes in Python."""
_LEARN_RPS: Final = 1.2
_LEARN_S: Final = 120.0
_MOST: Final = 6
_DOWN_S: Final = 180
_ENDING_S: Final = 30.0
_WITHIN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Look:
    """One service at one moment."""

    at_s: float
    """Since the ramp began."""
    wanted: int
    there: int
    """Pods that exist: that start, serve or leave."""
    ready: int


@dataclass(frozen=True, slots=True)
class Row:
    """One autoscaler under the ramp."""

    arm: str
    attained: float
    """The share of all requests that were answered within each target."""
    failed: int
    """Requests that were refused or got no whole answer."""
    offered: int
    pod_minutes: float
    turns: int
    """Changes of direction of the replicas; a ramp up and down needs one."""
    most: int
    looks: tuple[Look, ...]


@dataclass
class Fleet:
    """The services, and what was seen of them."""

    cluster: Cluster
    node: ProcessNode
    stack: Stack
    records: dict[str, list[ClientRecord]] = field(default_factory=dict)
    looks: dict[str, list[Look]] = field(default_factory=dict)

    def kubectl(self, *args: str) -> None:
        """Run kubectl in the services' namespace."""
        self.cluster.kubectl(f"--namespace={HOME}", *args)

    def apply(self, found: Json) -> None:
        """Create or change an object there."""
        self.cluster.kubectl(
            f"--namespace={HOME}", "apply", "--filename=-", input=json.dumps(found)
        )

    def drive(self, planned: list[PlannedRequest]) -> dict[str, list[ClientRecord]]:
        """Send the same requests to every service at the same time."""
        self.records = {arm: [] for arm in ARMS}

        async def one(arm: str) -> None:
            unlimited = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
            pods = _Pods(lambda: self.node.serving(HOME, arm), limits=unlimited)
            async with httpx.AsyncClient(base_url=f"http://{arm}", transport=pods) as client:
                await drive_open(client, planned, Asking(arm), self.records[arm].append)

        async def every() -> None:
            async with asyncio.TaskGroup() as group:
                for arm in ARMS:
                    group.create_task(one(arm))

        asyncio.run(every())
        return self.records

    def metric(self, name: str, arm: str) -> float | None:
        """Read one metric of a service from Prometheus."""
        found = self.stack.query(f'{name}{{namespace="{HOME}",inferenceservice="{arm}"}}')
        return float(found[0]["value"][1]) if found else None

    @contextmanager
    def watched(self, began_at: float) -> Iterator[None]:
        """Look at every service once a second."""
        self.looks = {arm: [] for arm in ARMS}
        is_over = Event()

        def look() -> None:
            with api(self.cluster) as client:
                while not is_over.wait(1.0):
                    with suppress(httpx.HTTPError):  # the next look tells
                        self._look(client, time.monotonic() - began_at)

        thread = Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(60)

    def _look(self, client: httpx.Client, at_s: float) -> None:
        group = f"/apis/serving.paceline.dev/v1alpha1/namespaces/{HOME}/inferenceservices"
        services = {each["metadata"]["name"]: each for each in _items(client, group)}
        pods = _items(client, f"/api/v1/namespaces/{HOME}/pods")
        for arm in ARMS:
            mine = [each for each in pods if _service_of(each) == arm]
            wanted = int(services[arm]["spec"].get("replicas", 1))
            ready = len(self.node.serving(HOME, arm))
            self.looks[arm].append(Look(at_s, wanted, len(mine), ready))


class _Pods(httpx.AsyncHTTPTransport):
    """Sends each request to the next pod that is ready, as a Service does."""

    def __init__(self, serving: Callable[[], list[str]], *, limits: httpx.Limits) -> None:
        super().__init__(limits=limits)
        self._serving = serving
        self._number = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        urls = self._serving()
        if not urls:
            raise httpx.ConnectError("no pod is ready", request=request)
        self._number += 1
        pod = httpx.URL(urls[self._number % len(urls)])
        request.url = request.url.copy_with(host=pod.host, port=pod.port)
        return await super().handle_async_request(request)


def main() -> None:
    """Learn what a pod serves, let the ramp pass, and write what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="of the ramp")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    os.environ["TIMED_ENGINE_LOAD_S"] = str(_LOAD_S)
    with TemporaryDirectory() as place, start.control_plane() as cluster:
        folder = Path(place)
        with (
            monitored_chart(cluster, folder, has_rules=False, webhook="http://127.0.0.1:9/") as (
                node,
                stack,
            ),
            keda(cluster, folder),
        ):
            node.slowdown.write_text(_SLOWDOWN)
            fleet = Fleet(cluster, node, stack)
            _create(fleet)
            raw = _measure(fleet, chosen.minutes, chosen.seed)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "real.json").write_text(json.dumps(raw) + "\n")
    (RESULTS / "real.md").write_text(_page(raw))
    print(_page(raw))


def _create(fleet: Fleet) -> None:
    for arm in ARMS:
        fleet.apply(_service(arm))
    for arm in ARMS:
        fleet.kubectl("wait", "--for=condition=Ready", f"pisvc/{arm}", "--timeout=300s")


def _service(arm: str) -> Json:
    targets = {
        "ttft": {"p99": f"{_TARGETS.ttft_p99_ms:.0f}ms"},
        "tpot": {"p99": f"{_TARGETS.tpot_p99_ms:.0f}ms"},
    }
    return {
        "apiVersion": "serving.paceline.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": arm},
        "spec": {
            "model": {"uri": "builtin://smollm2-135m-instruct"},
            "engine": {"capacity": {"maxBatchSize": 8, "maxTokenBudget": 256}},
            "sla": targets,
            "admission": {"requestTimeout": "60s"},
            "rollout": {"drainSeconds": 30},
            "resources": {"gpu": {"count": 0}},
        },
    }


def _measure(fleet: Fleet, minutes: float, seed: int) -> Json:
    capacity_rps, in_flight = _learn(fleet)
    print(f"one pod: {capacity_rps:.2f}/s within the SLA, {in_flight:.1f} inside", flush=True)
    ramp = _ramp(capacity_rps, minutes)
    for arm in ARMS:
        if arm != ORACLE:
            _scale_by(fleet, arm, in_flight)
    arrivals = ramp.requests(seed).arrival_s
    planned = _planned([float(each) for each in arrivals], seed)
    began_at = time.monotonic()
    with fleet.watched(began_at), _foreseen(fleet, ramp, capacity_rps, began_at):
        records = fleet.drive(planned)
    rows = [_row(arm, records[arm], fleet.looks[arm], ramp, began_at) for arm in ARMS]
    return {
        "capacity_rps": capacity_rps,
        "in_flight": in_flight,
        "ramp": asdict(ramp),
        "cold_s": _COLD_S,
        "targets": {"ttft_ms": _TARGETS.ttft_p99_ms, "tpot_ms": _TARGETS.tpot_p99_ms},
        "rows": [asdict(row) for row in rows],
    }


def _learn(fleet: Fleet) -> tuple[float, float]:
    """Ask every service until it knows λ*, then at four fifths of it: the load test of a person."""
    fleet.drive(_steady(_LEARN_RPS, _LEARN_S))
    found: dict[str, float] = {}

    def known() -> bool:
        for arm in ARMS:
            value = fleet.metric("paceline_capacity_requests_per_second", arm)
            if value:
                found[arm] = value
        return len(found) == len(ARMS)

    wait_until(known, within_s=_WITHIN_S, every_s=1.0)
    print(f"λ*: {found}", flush=True)
    capacity_rps = median(found.values())
    rate_rps = 0.8 * capacity_rps
    tested = fleet.drive(_steady(rate_rps, _LEARN_S / 2))
    ends = Counter((each.outcome, each.error) for records in tested.values() for each in records)
    print(f"a load test at {rate_rps:.2f}/s: {ends}", flush=True)
    whole_s = [
        whole_ms(each) / 1e3
        for records in tested.values()
        for each in records
        if each.outcome == "ok"
    ]
    return capacity_rps, rate_rps * sum(whole_s) / len(whole_s)


def _steady(rate_rps: float, seconds: float) -> list[PlannedRequest]:
    chance = random.Random(0)
    count = round(rate_rps * seconds)
    return _planned(sorted(chance.uniform(0, seconds) for _ in range(count)), 0)


def _planned(arrivals: list[float], seed: int) -> list[PlannedRequest]:
    chance, corpus = random.Random(seed), help_topics()
    return [
        PlannedRequest(at_s, long_excerpt(corpus, _PROMPT, chance), _OUTPUT) for at_s in arrivals
    ]


def _ramp(capacity_rps: float, minutes: float) -> Ramp:
    """From three fifths of what a pod serves to three times of it, and back."""
    part_s = minutes * 60.0 / 20.0
    return Ramp(
        0.6 * capacity_rps,
        3.0 * capacity_rps,
        quiet_s=2 * part_s,
        rise_s=5 * part_s,
        stay_s=4 * part_s,
        fall_s=4 * part_s,
        rest_s=5 * part_s,
    )


def _scale_by(fleet: Fleet, arm: str, in_flight: float) -> None:
    """Hand a service to KEDA: the example's ScaledObject, or the same with another query."""
    (found,) = documents_of("keda.yaml")
    found["metadata"]["name"] = found["spec"]["scaleTargetRef"]["name"] = arm
    found["spec"]["maxReplicaCount"] = _MOST
    (trigger,) = found["spec"]["triggers"]
    trigger["metadata"] |= _trigger(arm, in_flight) | {"serverAddress": fleet.stack.prometheus}
    if arm != "recommended":  # else as KEDA has it, but for an equal wait before it scales in
        del found["spec"]["fallback"], trigger["metadata"]["ignoreNullValues"]
        behavior = {"scaleDown": {"stabilizationWindowSeconds": _DOWN_S}}
        found["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] = behavior
    fleet.apply(found)
    fleet.kubectl("wait", "--for=condition=Ready", f"scaledobject/{arm}", "--timeout=120s")


def _trigger(arm: str, in_flight: float) -> dict[str, str]:
    """What is read, and how much of it a pod may have."""
    mine = f'{{namespace="{HOME}",model_name="{arm}"}}'
    match arm:
        case "recommended":
            (found,) = documents_of("keda.yaml")
            query: str = found["spec"]["triggers"][0]["metadata"]["query"]
            return {"query": query.replace('"default"', f'"{HOME}"').replace("chat", arm)}
        case "waiting":
            return {"query": f"sum(vllm:num_requests_waiting{mine})", "threshold": "5"}
        case _:
            running = f"vllm:num_requests_running{mine}"
            return {
                "query": f"sum({running} + vllm:num_requests_waiting{mine})",
                "threshold": f"{in_flight:.2f}",
            }


@contextmanager
def _foreseen(fleet: Fleet, ramp: Ramp, capacity_rps: float, began_at: float) -> Iterator[None]:
    """Write the oracle's replicas, each a start before it is needed."""
    is_over = Event()
    oracle = Oracle(ramp, capacity_rps, _COLD_S)

    def follow() -> None:
        now = 1
        while not is_over.wait(1.0):
            wanted = oracle.wanted(time.monotonic() - began_at)
            if wanted != now:
                fleet.kubectl("scale", f"pisvc/{ORACLE}", f"--replicas={wanted}")
                now = wanted

    thread = Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


def _row(
    arm: str, records: list[ClientRecord], looks: list[Look], ramp: Ramp, began_at: float
) -> Row:
    counted = [each for each in records if each.planned_at - began_at < ramp.seconds - _ENDING_S]
    seen = [look for look in looks if look.at_s < ramp.seconds]
    steps = [after.wanted - before.wanted for before, after in pairwise(seen)]
    moves = [step for step in steps if step]
    return Row(
        arm=ARMS[arm],
        attained=sum(is_met(_TARGETS, each) for each in counted) / len(counted),
        failed=sum(each.outcome != "ok" for each in counted),
        offered=len(counted),
        pod_minutes=sum(
            (after.at_s - before.at_s) * before.there for before, after in pairwise(seen)
        )
        / 60,
        turns=sum(one * other < 0 for one, other in pairwise(moves)),
        most=max(look.wanted for look in seen),
        looks=tuple(replace(look, at_s=round(look.at_s, 1)) for look in seen[::5]),
    )


def _page(raw: Mapping[str, Any]) -> str:
    ramp, rows = raw["ramp"], raw["rows"]
    (oracle,) = (row for row in rows if row["arm"] == ARMS[ORACLE])
    minutes = sum(value for name, value in ramp.items() if name.endswith("_s")) / 60
    lines = [
        f"| {row['arm']} | {row['attained']:.2%} | {row['attained'] / oracle['attained']:.2%}"
        f" | {row['failed']} | {row['pod_minutes']:.0f}"
        f" | {row['pod_minutes'] / oracle['pod_minutes']:.2f} | {row['turns']} | {row['most']} |"
        for row in rows
    ]
    return (
        "# A real ramp\n\n`PYTHONPATH=benchmarks:tests python -m autoscale.real` writes this page"
        " and says what of it is real.\n\n"
        f"One pod serves {raw['capacity_rps']:.2f} requests a second within the SLA (λ\\*), says"
        f" the tuner; a ramp of {minutes:.0f} minutes goes from 0.6 to 3 times of it and back,"
        f" {oracle['offered']} requests to each service. A pod takes about"
        f" {raw['cold_s']:.0f} s to start. KEDA looks every 15 s, and nothing scales in before"
        f" {_DOWN_S} s have passed.\n\n"
        "| Scales on | Requests within the SLA | of the oracle's | not answered | Pod-minutes"
        " | of the oracle's | Turns | Most pods |\n|---|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )


def _items(client: httpx.Client, path: str) -> list[Json]:
    answer = client.get(path)
    answer.raise_for_status()
    found: list[Json] = answer.json()["items"]
    return found


def _service_of(pod: Json) -> str | None:
    found: str | None = pod["metadata"]["labels"].get("serving.paceline.dev/service")
    return found


if __name__ == "__main__":
    main()
