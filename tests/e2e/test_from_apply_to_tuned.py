"""The whole path on a real node: install, apply, serve, tune, change, break, upgrade, delete."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import OpenAI

from local_cluster.cluster import Cluster, kubectl_command
from paceline_cli.traffic.offered_load import OfferedLoad, TokenLengths
from paceline_testing.background_load import background_load
from paceline_testing.quickstart import GITOPS, QUICKSTART, Quickstart, condition
from paceline_testing.waiting import wait_until

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "paceline"
SYSTEM = "paceline-system"
RELEASE = "paceline"

# What one slow core can answer: few requests, some of them long enough to stall the others.
BURSTS = OfferedLoad(
    rate_rps=1.0,
    cv=2.5,
    prompt_tokens=TokenLengths(median=120, sigma=1.0, min=16, max=900),
    output_tokens=TokenLengths(median=16, sigma=0.4, min=4, max=32),
    block_s=15.0,
)
TRICKLE = OfferedLoad(
    rate_rps=0.5,
    cv=1.0,
    prompt_tokens=TokenLengths(median=24, sigma=0.3, min=8, max=48),
    output_tokens=TokenLengths(median=8, sigma=0.0, min=8, max=8),
    block_s=6.0,
)
# Targets that a busy machine cannot miss: nothing is refused while they hold.
EASY = {"ttft": {"p99": "60s"}, "itl": {"p99": "10s"}}
STRICTER = {"ttft": {"p99": "45s"}, "itl": {"p99": "8s"}}

ACKNOWLEDGED_WITHIN_S = 10.0
READY_WITHIN = "--timeout=300s"


def chart_values(cluster: Cluster) -> dict[str, Any]:
    repository, tag = cluster.images["operator"].split(":")
    return {
        "image": {"repository": repository, "tag": tag},
        "engineImage": cluster.images["engine"],
        "sidecarImage": cluster.images["sidecar"],
    }


@pytest.fixture(scope="module")
def installed(node_cluster: Cluster) -> Iterator[Cluster]:
    """The chart, installed; removed at the end if a test has not done so."""
    with node_cluster.helm(SYSTEM) as helm:
        helm.install(
            CHART,
            RELEASE,
            chart_values(node_cluster),
            create_namespace=True,
            wait="watcher",
            timeout=300,
        )
    yield node_cluster
    node_cluster.try_kubectl("delete", "pisvc", "--all", "--timeout=300s")
    node_cluster.try_kubectl("delete", "namespace", SYSTEM, "--timeout=120s")


@pytest.fixture(scope="module")
def quickstart(installed: Cluster) -> Quickstart:
    """The quickstart, applied and Ready."""
    service = Quickstart(installed)
    service.apply()
    installed.kubectl("wait", "--for=condition=Ready", f"pisvc/{service.name}", READY_WITHIN)
    return service


def test_the_operator_gets_ready_under_the_charts_own_permissions(installed: Cluster) -> None:
    """Helm waited for the pod; it may write Deployments and may not read Secrets at will."""
    deployment = json.loads(
        installed.kubectl("get", "deployment", RELEASE, f"--namespace={SYSTEM}", "--output=json")
    )
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    operator = f"--as=system:serviceaccount:{SYSTEM}:{account}"

    assert deployment["status"]["readyReplicas"] == 1
    installed.kubectl("auth", "can-i", "patch", "deployments.apps", operator)
    refused = installed.try_kubectl("auth", "can-i", "create", "clusterroles", operator)
    assert refused.stdout.strip() == "no"


def test_the_quickstart_serves_the_embedded_model(quickstart: Quickstart) -> None:
    """Ready means that the official client gets an answer from the real model."""
    with (
        quickstart.cluster.reach(f"service/{quickstart.name}", 8000) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as client,
    ):
        answer = client.chat.completions.create(
            model=quickstart.name,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=24,
            temperature=0,
        )

    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_load_gets_the_limits_tuned_and_kubectl_shows_them(quickstart: Quickstart) -> None:
    """The manifest's first guess violates the ITL target; under load the operator leaves it."""
    tuning = quickstart.manifest["spec"]["tuning"]
    guess = (tuning["batchSize"]["initial"], tuning["tokenBudget"]["initial"])

    def seen() -> tuple[int, int]:
        """What status shows; the guess until it shows anything."""
        pods = quickstart.get()["status"].get("tuning", {}).get("pods", [])
        return next(((pod["batchSize"], pod["tokenBudget"]) for pod in pods), guess)

    with (
        quickstart.cluster.reach(f"service/{quickstart.name}", 8000) as url,
        background_load(url, BURSTS, model=quickstart.name),
    ):
        end = time.monotonic() + 300
        while seen() == guess:
            assert time.monotonic() < end, quickstart.get()["status"]
            time.sleep(1)

    service = quickstart.get()
    table = quickstart.cluster.kubectl("get", "pisvc", quickstart.name)
    [header, row] = (line.split() for line in table.splitlines())
    columns = dict(zip(header, row, strict=False))
    summary = service["status"]["tuning"]["summary"]
    assert condition(service, "TuningActive")["status"] == "True"
    assert service["status"]["tuning"]["history"]
    assert (columns["BATCH"], columns["TOKENS"]) == (summary["batchSize"], summary["tokenBudget"])


def test_diagnose_asks_a_pod_through_the_users_own_kubectl(quickstart: Quickstart) -> None:
    """Port and token with the rights of the kubeconfig; nothing is exposed for it."""
    cluster = quickstart.cluster
    tools = os.pathsep.join([str(Path(kubectl_command()).parent), os.environ["PATH"]])
    paceline = "from paceline_cli.__main__ import main; main()"
    wanted = ["--seconds=900", "--format=json", f"--kubeconfig={cluster.kubeconfig}"]

    done = subprocess.run(
        [sys.executable, "-c", paceline, "diagnose", quickstart.name, *wanted],
        env=os.environ | {"PATH": tools},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["outcomes"]["ok"] > 0
    assert found["time"]["num_steps"] > 0


def test_a_new_p99_reaches_every_pod_without_a_restart(quickstart: Quickstart) -> None:
    """The SLA is hot: acknowledged within 10 s, no pod replaced, no request failed."""
    quickstart.apply(EASY)
    quickstart.wait_until_acknowledged(EASY, within_s=60)
    before = quickstart.identities()

    with (
        quickstart.cluster.reach(f"service/{quickstart.name}", 8000) as url,
        background_load(url, TRICKLE, model=quickstart.name) as records,
    ):
        quickstart.apply(STRICTER)
        quickstart.wait_until_acknowledged(STRICTER, within_s=ACKNOWLEDGED_WITHIN_S)

    assert quickstart.identities() == before
    assert records
    assert {(record.outcome, record.error) for record in records} == {("ok", "")}


def test_gitops_sees_no_difference_after_tuning(quickstart: Quickstart) -> None:
    """Tuned values live in status: diff and dry-run are empty, the generation stands still."""
    changed_at = quickstart.get()["status"]["tuning"]["lastChangeTime"]
    applied = quickstart.apply()
    generation = quickstart.get()["metadata"]["generation"]
    with (
        quickstart.cluster.reach(f"service/{quickstart.name}", 8000) as url,
        background_load(url, BURSTS, model=quickstart.name) as records,
    ):
        wait_until(lambda: len(records) >= 10, within_s=300)
        wait_until(
            lambda: quickstart.get()["status"]["tuning"]["lastChangeTime"] != changed_at,
            within_s=300,
        )

    difference = quickstart.cluster.try_kubectl("diff", *GITOPS, "--filename=-", input=applied)
    dry_run = json.loads(
        quickstart.cluster.kubectl(
            *("apply", *GITOPS, "--dry-run=server", "--filename=-", "--output=json"), input=applied
        )
    )
    service = quickstart.get()
    assert (difference.returncode, difference.stdout) == (0, ""), difference.stderr
    assert dry_run["spec"] == service["spec"]
    assert service["metadata"]["generation"] == generation
    assert service["metadata"].get("finalizers") is None


def test_a_killed_engine_fails_requests_at_once_and_comes_back(quickstart: Quickstart) -> None:
    """The sidecar answers 503 while there is no engine; the pod is ready again when it serves."""
    [pod] = quickstart.pods()
    [(uid, restarts)] = quickstart.identities()
    name = pod["metadata"]["name"]
    body = {"model": quickstart.name, "prompt": "One, two,", "max_tokens": 2}

    with quickstart.cluster.reach(f"pod/{name}", 8000) as url:
        quickstart.cluster.kubectl(
            *("exec", name, "--container=engine", "--", "sh", "-c", "kill -TERM 1")
        )
        end = time.monotonic() + 60
        while (answer := httpx.post(f"{url}/v1/completions", json=body, timeout=60)).is_success:
            assert time.monotonic() < end, "the engine goes on after SIGTERM"
    quickstart.cluster.kubectl("wait", "--for=condition=Ready=false", f"pod/{name}", READY_WITHIN)
    quickstart.cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", READY_WITHIN)
    quickstart.cluster.kubectl(
        "wait", "--for=condition=Ready", f"pisvc/{quickstart.name}", READY_WITHIN
    )

    # Ready is a promise: no condition is waited for any more.
    assert quickstart.limits(name)["effective"]
    assert answer.status_code == 503
    assert answer.elapsed.total_seconds() < 5
    assert answer.json()["error"]["message"]
    assert quickstart.identities() == {(uid, restarts + 1)}


def test_a_model_that_is_not_there_becomes_a_condition(installed: Cluster) -> None:
    """A wrong URI is told with a reason and a message that names it."""
    manifest = yaml.safe_load(QUICKSTART.read_text())
    manifest["metadata"]["name"] = "nowhere"
    manifest["spec"]["model"]["uri"] = "file:///models/nowhere"
    manifest["spec"]["resources"] |= {"cpu": "100m", "memory": "1Gi"}
    installed.kubectl("apply", "--filename=-", input=yaml.safe_dump(manifest))

    reason = "--for=jsonpath={.status.conditions[?(@.type=='ModelAvailable')].reason}=ModelNotFound"
    installed.kubectl("wait", reason, "pisvc/nowhere", READY_WITHIN)
    service = json.loads(installed.kubectl("get", "pisvc", "nowhere", "--output=json"))
    installed.kubectl("delete", "pisvc", "nowhere", "--timeout=120s")

    assert condition(service, "ModelAvailable")["status"] == "False"
    assert "/models/nowhere" in condition(service, "ModelAvailable")["message"]
    assert condition(service, "Ready")["status"] == "False"


def test_an_upgrade_of_the_chart_leaves_the_pods_alone(quickstart: Quickstart) -> None:
    """A new operator finds what the old one made and changes none of it, images least of all."""
    before = quickstart.identities()
    cluster = quickstart.cluster
    with cluster.helm(SYSTEM) as helm:
        images = {"engineImage": "paceline/engine:newer", "sidecarImage": "paceline/sidecar:newer"}
        values = chart_values(cluster) | images | {"logLevel": "debug"}
        release = helm.upgrade(CHART, RELEASE, values, wait="watcher", timeout=300)
    quickstart.apply(EASY)
    quickstart.wait_until_acknowledged(EASY, within_s=120)  # by the new operator

    assert release["revision"] == 2
    assert quickstart.identities() == before


def test_deleting_a_service_leaves_nothing_of_it(quickstart: Quickstart) -> None:
    """Children are owned: the garbage collector takes them, no finalizer holds anything."""
    kinds = "deployments,replicasets,pods,services,configmaps,secrets,serviceaccounts,pdb"
    everything = ("get", kinds, quickstart.pod_selector, "--output=name")
    assert quickstart.cluster.kubectl(*everything)

    quickstart.cluster.kubectl("delete", "pisvc", quickstart.name, "--timeout=60s")
    end = time.monotonic() + 300
    while left := quickstart.cluster.kubectl(*everything):
        assert time.monotonic() < end, left
        time.sleep(1)


def test_uninstalling_the_chart_leaves_only_the_definition(installed: Cluster) -> None:
    """Helm never deletes definitions, because users' services would go with them."""
    with installed.helm(SYSTEM) as helm:
        helm.uninstall(RELEASE, wait="watcher", timeout=300)

    kinds = "deployments,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
    label = f"--selector=app.kubernetes.io/instance={RELEASE}"
    left = installed.kubectl("get", kinds, "--all-namespaces", label, "--output=name")
    assert left == ""
    installed.kubectl("get", "crd", "inferenceservices.serving.paceline.dev")
