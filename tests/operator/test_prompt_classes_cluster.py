"""How each class of prompts stands, as the real API server keeps and shows it."""

import json
from collections.abc import Iterator

import pytest

from local_cluster.cluster import Cluster
from paceline_api.status import SlaStatus
from paceline_operator.service_status import sla_status
from paceline_testing.reports import a_report
from paceline_testing.services import a_manifest
from paceline_tuner.service_report import MeasuredClass, MeasuredLatency, ServiceReport

pytestmark = pytest.mark.cluster

_NAME = "classed"
_OBJECT = f"inferenceservice/{_NAME}"


@pytest.fixture
def service(control_plane: Cluster) -> Iterator[str]:
    """Half a second up to 2,000 tokens, five beyond; no pod of it ever runs."""
    classes = [{"upTo": 2000, "p99": "500ms"}, {"p99": "5s"}]
    manifest = a_manifest(_NAME, sla={"ttft": {"byPromptTokens": classes}})
    control_plane.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    yield _OBJECT
    control_plane.kubectl("delete", _OBJECT, "--timeout=60s")


def a_status(*classes: MeasuredClass) -> SlaStatus:
    measured = MeasuredLatency(800.0, None, None, 90, 0.9, by_prompt_tokens=classes)
    report = a_report()
    return sla_status(
        ServiceReport(
            key=report.key,
            at=report.at,
            observed=measured,
            capacity_rps=None,
            utilization=None,
            recommended_replicas=None,
            conditions=(),
            pods=(),
            history=(),
            acknowledged=False,
        )
    )


def test_kubectl_shows_the_class_that_fails(control_plane: Cluster, service: str) -> None:
    """Every field outlives the schema, and the wide columns name the prompts that are late."""
    status = a_status(
        MeasuredClass(1, 2000, 500.0, 812.0, 50, 5, "Violating"),
        MeasuredClass(2001, None, 5000.0, 900.0, 40, 0, "Meeting"),
    ).model_dump(by_alias=True, exclude_none=True)
    patch = ("patch", service, "--subresource=status", "--type=merge", "-p")

    control_plane.kubectl(*patch, json.dumps({"status": {"sla": status}}))

    kept = json.loads(control_plane.kubectl("get", service, "-o", "json"))
    shown = control_plane.kubectl("get", service, "-o", "wide").splitlines()
    assert kept["status"]["sla"]["ttftByPromptTokens"] == status["ttftByPromptTokens"]
    assert "LATE-PROMPTS" in shown[0]
    assert "1-2000" in shown[1]
    assert "2001-" not in shown[1]
