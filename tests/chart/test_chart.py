"""The chart, by a real Helm: it lints, renders what it promises and refuses bad values."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import HelmError
from helm_python.chart import Chart, lint

CHART = Path(__file__).parents[2] / "charts" / "paceline"


def render(**values: Any) -> list[dict[str, Any]]:
    rendered = Chart.load(CHART).render(values, name="pl", namespace="paceline-system")
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] == kind]


def test_the_chart_lints_without_an_error_or_a_warning() -> None:
    report = lint(CHART, strict=True)

    serious = [message for message in report["messages"] if message["severity"] > 1]
    assert (serious, report["errors"]) == ([], [])


def test_the_operator_runs_restricted() -> None:
    """The Pod Security Standard `restricted` would admit it."""
    (deployment,) = of_kind(render(), "Deployment")

    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_images_follow_the_chart_unless_named() -> None:
    (deployment,) = of_kind(render(sidecarImage="registry.test/s:2"), "Deployment")

    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert container["image"] == "paceline/operator:0.2.0"
    assert env["PACELINE_OPERATOR_ENGINE_IMAGE"] == "paceline/engine:0.2.0"
    assert env["PACELINE_OPERATOR_SIDECAR_IMAGE"] == "registry.test/s:2"


def test_the_tuner_may_have_processes_of_its_own() -> None:
    """One, the operator's, unless more are asked for; values of before the field do, too."""
    found = []
    for values in ({}, {"tuner": {"processes": 3}}, {"tuner": None}):
        (deployment,) = of_kind(render(**values), "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        env = {item["name"]: item.get("value") for item in container["env"]}
        found.append(env["PACELINE_OPERATOR_TUNER_PROCESSES"])

    assert found == ["1", "3", "1"]


def test_each_process_of_the_tuner_has_a_lease_that_replicas_share() -> None:
    """By name, and a way to one another; one process needs no Lease besides the leader's."""
    found = []
    for processes in (1, 3):
        objects = render(tuner={"processes": processes})
        (rules,) = [
            role["rules"]
            for role in of_kind(objects, "Role")
            if role["metadata"]["name"].endswith("-leader")
        ]
        (names,) = [rule["resourceNames"] for rule in rules if rule["verbs"] == ["get", "update"]]
        found.append(names)
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("valueFrom") for item in container["env"]}
    (policy,) = of_kind(objects, "NetworkPolicy")
    others = {"podSelector": deployment["spec"]["selector"]}

    assert found == [
        ["pl-paceline"],
        ["pl-paceline", *(f"pl-paceline-shard-{number}" for number in range(3))],
    ]
    assert env["PACELINE_OPERATOR_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert others in policy["spec"]["ingress"][0]["from"]
    assert {"ports": [{"port": 8080, "protocol": "TCP"}], "to": [others]} in policy["spec"][
        "egress"
    ]


def test_a_digest_says_what_the_operator_runs() -> None:
    """With a tag that a person can read, or alone."""
    digest = "sha256:" + "0" * 64
    alone, both = (
        of_kind(
            render(image={"repository": "r.test/o", "digest": digest, "tag": tag}), "Deployment"
        )
        for tag in ("", "2")
    )

    assert image_of(alone) == f"r.test/o@{digest}"
    assert image_of(both) == f"r.test/o:2@{digest}"


def image_of(deployments: list[dict[str, Any]]) -> str:
    (deployment,) = deployments
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def test_replicas_are_spread_and_one_may_be_disturbed() -> None:
    """One replica needs neither, and a drain of its node must go on."""
    (alone,) = of_kind(render(), "Deployment")
    (several,) = of_kind(render(replicaCount=2), "Deployment")
    (budget,) = of_kind(render(replicaCount=2), "PodDisruptionBudget")
    (spread,) = several["spec"]["template"]["spec"]["topologySpreadConstraints"]

    assert "topologySpreadConstraints" not in alone["spec"]["template"]["spec"]
    assert of_kind(render(), "PodDisruptionBudget") == []
    assert of_kind(render(replicaCount=2, podDisruptionBudget=False), "PodDisruptionBudget") == []
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == several["spec"]["selector"]
    assert spread["labelSelector"] == several["spec"]["selector"]


def test_what_a_pod_needs_of_its_cluster_can_be_said() -> None:
    """Each value reaches the pod as it is."""
    spread = [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    values = {
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "topologySpreadConstraints": spread,
    }
    (deployment,) = of_kind(render(**values), "Deployment")

    pod = deployment["spec"]["template"]["spec"]
    assert {key: pod[key] for key in values} == values


def test_named_namespaces_need_no_cluster_role() -> None:
    """A team without cluster rights can install the operator for its own namespaces."""
    objects = render(watchNamespaces=["team-a", "team-b"])

    roles = {item["metadata"]["namespace"] for item in of_kind(objects, "Role")}
    assert of_kind(objects, "ClusterRole") == []
    assert of_kind(objects, "ClusterRoleBinding") == []
    assert roles == {"team-a", "team-b", "paceline-system"}


def test_named_namespaces_need_nothing_outside_of_them() -> None:
    """With every switch on but the definition's, which belongs to the whole cluster."""
    objects = render(
        watchNamespaces=["team-a"],
        crds={"upgrade": False},
        replicaCount=2,
        monitoring={
            "podMonitor": True,
            "servicePodMonitor": True,
            "prometheusRule": True,
            "dashboards": True,
        },
    )

    places = {item["metadata"].get("namespace", item["kind"]) for item in objects}
    assert places == {"team-a", "paceline-system"}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {"pl-paceline-view", "pl-paceline-edit"}),
        ({"aggregateRoles": False}, set()),
        ({"watchNamespaces": ["a"]}, set()),
        (
            {"watchNamespaces": ["a"], "aggregateRoles": True},
            {"pl-paceline-view", "pl-paceline-edit"},
        ),
    ],
    ids=["everywhere", "refused", "named namespaces", "asked for"],
)
def test_roles_for_people_come_where_cluster_roles_may(
    values: dict[str, Any], wanted: set[str]
) -> None:
    """A team that may create Roles alone can install the chart as it is."""
    names = {role["metadata"]["name"] for role in of_kind(render(**values), "ClusterRole")}

    assert names - {"pl-paceline"} == wanted


@pytest.mark.parametrize("namespaces", [[], ["team"]], ids=["everywhere", "named namespaces"])
def test_no_secret_is_read_but_the_operators_own_key(namespaces: list[str]) -> None:
    """Whoever may read the Secrets of every namespace owns the cluster."""
    objects = render(watchNamespaces=namespaces)
    rules = [
        (role["kind"], rule.get("resourceNames"), rule["verbs"])
        for role in of_kind(objects, "ClusterRole") + of_kind(objects, "Role")
        for rule in role["rules"]
        if "secrets" in rule["resources"]
    ]

    assert ("Role", ["pl-paceline-token-key"], ["get"]) in rules
    assert {verb for _, names, verbs in rules if names is None for verb in verbs} == {"create"}


def test_the_spec_is_never_written() -> None:
    """GitOps owns spec: the operator may write `status` alone."""
    (role,) = [
        r for r in of_kind(render(), "ClusterRole") if r["metadata"]["name"] == "pl-paceline"
    ]

    (rule,) = [rule for rule in role["rules"] if "inferenceservices" in rule["resources"]]
    assert set(rule["verbs"]) == {"get", "list", "watch"}


def test_monitors_and_rules_come_only_when_asked_for() -> None:
    """A cluster without the Prometheus operator has no such kinds."""
    kinds = {item["kind"] for item in render()}
    asked = render(
        monitoring={"podMonitor": True, "servicePodMonitor": True, "prometheusRule": True}
    )

    plain = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    (rule,) = of_kind(asked, "PrometheusRule")
    assert kinds.isdisjoint({"PodMonitor", "PrometheusRule"})
    assert len(of_kind(asked, "PodMonitor")) == 2
    assert rule["spec"] == plain


def test_the_schema_knows_every_value_and_no_other() -> None:
    """A value that it lacks would be refused; one that only it has would do nothing."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    of_helm = {"global", "nameOverride", "fullnameOverride"}

    assert [*_unlike(values, schema, "")] == sorted(
        f".{name}: only in the schema" for name in of_helm
    )


def _unlike(values: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    """Name what one of them lacks; an object that the schema leaves open is the user's."""
    known = schema.get("properties")
    if known is None:
        return
    assert schema["additionalProperties"] is False, path
    yield from sorted(f"{path}.{name}: only in the schema" for name in known.keys() - values.keys())
    yield from sorted(f"{path}.{name}: only in the values" for name in values.keys() - known.keys())
    for name in values.keys() & known.keys():
        if isinstance(values[name], dict):
            yield from _unlike(values[name], known[name], f"{path}.{name}")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"replicaCount": "two"}, "replicaCount"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"watchNamespaces": ["Not_A_Name"]}, "watchNamespaces"),
        ({"replicas": 2}, "replicas"),
        ({"image": {"repository": "r", "digest": "latest"}}, "digest"),
        ({"monitoring": {"runbookBaseUrl": "docs/runbooks"}}, "runbookBaseUrl"),
    ],
    ids=["type", "enum", "pattern", "unknown", "digest", "relative"],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], field: str) -> None:
    """A typo in a values file must not pass silently."""
    with pytest.raises(HelmError, match=field):
        Chart.load(CHART).validate_schema(values)
