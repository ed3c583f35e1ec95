"""From no pod to the first token on a whole Kubernetes, and what each part of it takes.

    PYTHONPATH=benchmarks:tests python benchmarks/from_zero.py --runs 5
    PYTHONPATH=benchmarks:tests python benchmarks/from_zero.py --runs 5 --through gateway

Starts the whole local cluster (root, Linux), installs the chart and applies the quickstart with no
replicas. Then, several times: one replica is asked for through /scale, as an autoscaler does, while
a client asks the Service for one token, twenty times a second until it gets it; and the service
goes back to none. The images are on the node, as they are where a pod has run before.

Through the gateway, nobody asks for a replica: a client asks Envoy Gateway once, for one token, and
the clock begins with its request. Prometheus counts it, KEDA reads the count and writes /scale, the
gateway holds the request meanwhile, and without requests KEDA takes the pod away. The objects are
those of docs/gateways.md (`paceline_testing.woken_service`). The two built parts take half an hour
at first.

Times of pods are those at which a watch hears of them, times of the engine's stages those of its
log. Ours is what the operator takes to ask for the pod, and what the engine takes from its first
line of Python until the pod is ready; the rest is Kubernetes and the container runtime.
"""

import argparse
import itertools
import json
import os
import random
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Final

import httpx
import yaml
from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from local_cluster import start
from local_cluster.cluster import Cluster
from paceline_testing import woken_service as woken
from paceline_testing.waiting import wait_until

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results" / "operator"
SYSTEM: Final = "paceline-system"
NAME: Final = "quickstart"
_LABEL: Final = "serving.paceline.dev/service"
WITHIN_S: Final = 300.0
ASK_EVERY_S: Final = 0.05
_ANY_MOMENT_S: Final = 10.0
STAGE: Final = re.compile(r"^(\S+Z) .*?(fetching|reading|loading weights|warming up) (\d+)%")


@dataclass(frozen=True)
class FromZero:
    """Seconds of each part of one start, in their order."""

    woken_s: float
    """From the request until the autoscaler has asked for a pod; 0 where it is the beginning."""
    pod_s: float
    """The operator and Kubernetes' controllers, until the pod exists."""
    scheduled_s: float
    sidecar_s: float
    """The pod's sandbox, network and volumes, until the sidecar's container runs."""
    engine_s: float
    """Until the engine's container runs."""
    imports_s: float
    """Python and torch, until the model is looked for."""
    weights_s: float
    """The model's configuration, tokenizer and weights, until the warm-up begins."""
    warm_up_s: float
    ready_s: float
    """Until the pod is Ready: the step loop begins, the sidecar hears of it, and the probe."""
    token_s: float
    """The Service's rules, and a token."""

    @property
    def whole_s(self) -> float:
        """From the beginning to the first token."""
        return float(sum(asdict(self).values()))

    @property
    def ours_s(self) -> float:
        """Without the autoscaler, Kubernetes and the container runtime."""
        started = self.imports_s + self.weights_s + self.warm_up_s + self.ready_s
        return self.pod_s + started + self.token_s


class Pods:
    """Notes when the pod of a service was first seen in each state."""

    def __init__(self, api: client.CoreV1Api, service: str) -> None:
        self.seen: dict[str, float] = {}
        self.name = ""
        self._api = api
        self._label = f"{_LABEL}={service}"
        self._watch: Any = watch.Watch()
        self._is_over = Event()
        self._thread = Thread(target=self._follow, daemon=True)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Watch until the end of the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._watch.stop()
            self._thread.join(WITHIN_S)

    def _follow(self) -> None:
        while not self._is_over.is_set():
            events = self._watch.stream(
                self._api.list_namespaced_pod,
                "default",
                label_selector=self._label,
                timeout_seconds=2,
            )
            with suppress(HTTPError):  # where an answer is cut short, the next watch goes on
                for event in events:
                    self._note(event["raw_object"], time.time())

    def _note(self, pod: dict[str, Any], now: float) -> None:
        status = pod["status"]
        self.name = pod["metadata"]["name"]
        self.seen.setdefault("pod", now)
        for condition in status.get("conditions", []):
            if condition["status"] == "True":
                self.seen.setdefault(condition["type"], now)
        containers = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        for container in containers:
            if "running" in container["state"]:
                self.seen.setdefault(container["name"], now)


def main() -> None:
    """Measure, print the medians, and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--through", choices=["gateway"])
    chosen = parser.parse_args()
    starts = []
    for begun in islice(_woken() if chosen.through else _scaled(), chosen.runs):
        starts.append(begun)
        print(f"{len(starts)}: {json.dumps(asdict(begun))}", flush=True)
    page = _page(starts)
    print(page)
    name = "from_zero_through_gateway" if chosen.through else "from_zero"
    chosen.results.mkdir(parents=True, exist_ok=True)
    (chosen.results / f"{name}.md").write_text(page)
    (chosen.results / f"{name}.json").write_text(
        json.dumps([asdict(each) for each in starts], indent=1) + "\n"
    )


def _scaled() -> Iterator[FromZero]:
    """Begin with /scale, again and again."""
    with start.whole() as cluster:
        _install(cluster)
        while True:
            yield _from_zero(cluster)


def _woken() -> Iterator[FromZero]:
    """Begin with a request, again and again."""
    with TemporaryDirectory() as folder, woken.woken_service(Path(folder)) as service:
        while True:
            service.slept()
            time.sleep(random.uniform(0, _ANY_MOMENT_S))  # out of step with scrapes and looks
            yield _from_request(service)


def _install(cluster: Cluster) -> None:
    repository, tag = cluster.images["operator"].split(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "engineImage": cluster.images["engine"],
        "sidecarImage": cluster.images["sidecar"],
    }
    chart = ROOT / "charts" / "paceline"
    with cluster.helm(SYSTEM) as helm:
        helm.install(chart, "paceline", values, create_namespace=True, wait="watcher", timeout=300)
    manifest = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    cluster.kubectl("apply", "--filename=-", input=json.dumps(manifest))
    cluster.kubectl("wait", "--for=condition=Ready", f"pisvc/{NAME}", f"--timeout={WITHIN_S:.0f}s")


def _from_zero(cluster: Cluster) -> FromZero:
    """Take the last pod away, ask for one, and wait for its first token."""
    api = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))
    cluster.kubectl("scale", f"pisvc/{NAME}", "--replicas=0")
    wait_until(
        lambda: not api.list_namespaced_pod("default", label_selector=f"{_LABEL}={NAME}").items,
        within_s=WITHIN_S,
        every_s=0.5,
    )
    service: Any = api.read_namespaced_service(NAME, "default")
    pods = Pods(api, NAME)
    with pods.followed():
        began_at = time.time()
        cluster.kubectl("scale", f"pisvc/{NAME}", "--replicas=1")
        answered_at = _first_token(f"http://{service.spec.cluster_ip}:8000")
        wait_until(lambda: "Ready" in pods.seen, within_s=WITHIN_S)
    log = cluster.kubectl("logs", pods.name, "--container=engine", "--timestamps")
    return _parts(began_at, began_at, pods.seen, _stages(log), answered_at)


def _from_request(service: woken.WokenService) -> FromZero:
    """Ask the gateway of a service without pods once."""
    made = config.new_client_from_config(str(service.cluster.kubeconfig))
    pods = Pods(client.CoreV1Api(made), woken.NAME)
    with pods.followed(), ThreadPoolExecutor(1) as pool:
        began_at = time.time()
        asked = pool.submit(_asked_once, service.url)
        woken_at = _wanted_at(client.CustomObjectsApi(made))
        answered_at = asked.result()
        wait_until(lambda: "Ready" in pods.seen, within_s=WITHIN_S)
    log = service.kubectl("logs", pods.name, "--container=engine", "--timestamps")
    return _parts(began_at, woken_at, pods.seen, _stages(log), answered_at)


def _asked_once(url: str) -> float:
    asked = {"model": woken.NAME, "prompt": "The", "max_tokens": 1}
    answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=WITHIN_S)
    answer.raise_for_status()
    return time.time()


def _wanted_at(api: client.CustomObjectsApi) -> float:
    """Look until the autoscaler has asked for a pod; return when it was seen."""
    kind = ("serving.paceline.dev", "v1alpha1", "default", "inferenceservices")
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        found: Any = api.get_namespaced_custom_object(*kind, woken.NAME)
        if found["spec"]["replicas"] > 0:
            return time.time()
        time.sleep(ASK_EVERY_S)
    raise SystemExit(f"nobody asked for a pod within {WITHIN_S:.0f} s")


def _first_token(url: str) -> float:
    """Ask until there is an answer; return when it came."""
    asked = {"model": NAME, "prompt": "The", "max_tokens": 1}
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        # Until the Service has a pod, connections are refused. Each request has one of its own.
        with suppress(httpx.TransportError):
            answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=30.0)
            if answer.status_code == 200:
                return time.time()
        time.sleep(ASK_EVERY_S)
    raise SystemExit(f"no token after {WITHIN_S:.0f} s")


def _stages(log: str) -> dict[str, float]:
    """Return when each stage of loading began, by the timestamps of the container runtime."""
    began: dict[str, float] = {}
    for line in log.splitlines():
        if found := STAGE.search(line):
            at = datetime.fromisoformat(found[1]).timestamp()
            began.setdefault(found[2], at)
            began[f"{found[2]} done"] = at
    return began


def _parts(
    began_at: float,
    woken_at: float,
    seen: dict[str, float],
    stages: dict[str, float],
    answered_at: float,
) -> FromZero:
    searched_at = min(stages[name] for name in ("fetching", "reading") if name in stages)
    times = [began_at, woken_at, seen["pod"], seen["PodScheduled"], seen["sidecar"], seen["engine"]]
    times += [searched_at, stages["warming up"], stages["warming up done"], seen["Ready"]]
    # An answer may come before the watch says that the pod is ready.
    ordered = list(itertools.accumulate([*times, answered_at], max))
    return FromZero(*(after - before for before, after in itertools.pairwise(ordered)))


def _page(starts: list[FromZero]) -> str:
    is_woken = any(one.woken_s for one in starts)
    asked = " --through gateway" if is_woken else ""
    what = "The service of docs/gateways.md" if is_woken else "The quickstart"
    rows = [
        (
            field.name.removesuffix("_s").replace("_", " "),
            [getattr(one, field.name) for one in starts],
        )
        for field in fields(FromZero)
        if is_woken or field.name != "woken_s"
    ]
    rows += [
        ("**from zero to the first token**", [one.whole_s for one in starts]),
        ("**of it ours**", [one.ours_s for one in starts]),
    ]
    lines = [
        f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |"
        for name, values in rows
    ]
    return (
        "# From zero to the first token\n\n"
        f"{what} on {os.cpu_count()} cores, images on"
        f" the node; seconds, median and range of {len(starts)} starts.\n\n"
        "| Part | Median | Range |\n|---|---|---|\n" + "\n".join(lines) + "\n\n"
        f"Made by `PYTHONPATH=benchmarks:tests python benchmarks/from_zero.py{asked}`, which says"
        " what each part is.\n"
    )


if __name__ == "__main__":
    main()
