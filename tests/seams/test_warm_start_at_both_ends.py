"""The warm start's ConfigMap and its PATCH, as both of their ends name them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from helm_python.chart import Chart

from paceline_operator.warm_start_map import NAME
from paceline_sidecar import runtime_patch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("watched", [[], ["team-a"]], ids=["ClusterRole", "Role"])
def test_the_chart_lets_the_operator_keep_its_warm_start(watched: list[str]) -> None:
    """Under a Role of other namespaces too: the warm start lies in the operator's own."""
    chart = Chart.load(ROOT / "charts" / "paceline")
    text = chart.render({"watchNamespaces": watched}, name="pl", namespace="ns")
    objects = [*yaml.safe_load_all(text["paceline/templates/rbac.yaml"])]
    roles: list[dict[str, Any]] = [
        item
        for item in objects
        if item
        and item["kind"] in {"Role", "ClusterRole"}
        and item["metadata"].get("namespace", "ns") == "ns"
    ]

    verbs = {
        verb
        for role in roles
        for rule in role["rules"]
        if "configmaps" in rule["resources"] and NAME in rule.get("resourceNames", [NAME])
        for verb in rule["verbs"]
    }
    # Server-side apply creates by PATCH, which has a name to allow.
    assert verbs >= {"get", "create", "patch"}


def test_the_tuners_start_is_a_patch_that_the_sidecar_takes() -> None:
    """Names and nesting of `coefficients`."""
    body = {
        "epoch": 4,
        "lease_s": 60.0,
        "max_batch_size": 18,
        "coefficients": {
            "theta": (30.0, 2.0, 0.5, 2.0, 50.0),
            "knee": 256,
            "correction": (1.0,),
            "bin_tokens": 4,
        },
    }

    patch = msgspec.json.decode(msgspec.json.encode(body), type=runtime_patch.LimitsPatch)

    sent = runtime_patch.coefficients_of(patch)
    assert sent is not None
    assert (sent.theta, sent.knee, sent.correction) == ([30.0, 2.0, 0.5, 2.0, 50.0], 256, [1.0])
    assert sent.bin_tokens == 4
