"""Hot and cold fields are told apart by two hashes."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from paceline_api.hashes import config_hash, template_hash
from paceline_api.inference_service import Spec
from paceline_api.part import OnChange, Part, changes
from paceline_api.tuning_spec import tuning_spec
from paceline_testing.services import a_service

HOT: list[dict[str, Any]] = [
    {"sla": {"ttft": {"p99": "400ms"}}},
    {"lanes": {"interactive": {"share": "0.7"}}},
    {"tuning": {"mode": "Observe"}},
    {"tuning": {"batchSize": {"max": 8}}},
    {"admission": {"shedHopeless": False}},
    {"admission": {"order": "ShortestFirst"}},
    {"admission": {"perKey": {"tokensPerMinute": 1000}, "keys": [{"name": "a", "weight": 3}]}},
    {"adapters": [{"name": "sql", "uri": "file:///a"}]},
]
COLD: list[dict[str, Any]] = [
    {"model": {"uri": "file:///models/other"}},
    {"engine": {"dtype": "Float32"}},
    {"engine": {"image": "mine:2"}},
    {"engine": {"lora": {"maxAdapters": 4}}},
    {"engine": {"swapMemory": "1Gi"}},
    {"engine": {"scheduling": "Dynamic", "dynamic": {"maxWait": "50ms"}}},
    {"engine": {"kvCacheMemory": "2Gi"}},
    {"resources": {"memory": "4Gi"}},
    {"resources": {"gpu": {"resourceName": "nvidia.com/mig-1g.10gb"}}},
    {"resourceClaims": [{"name": "gpu", "resourceClaimName": "team-gpu"}]},
    {"scheduling": {"schedulerName": "other"}},
    {"resources": {"exclusiveCpus": True, "cpu": 2, "memory": "4Gi"}},
    {"scheduling": {"priorityClassName": "high"}},
    {"rollout": {"drainSeconds": 5}},
    {"sidecar": {"resources": {"memory": "1Gi"}}},
    {"imagePullSecrets": [{"name": "registry"}]},
    {"podOverrides": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}},
    {"podOverrides": {"sidecarEnv": [{"name": "OTEL_SDK_DISABLED", "value": "true"}]}},
    {"podMetadata": {"labels": {"team": "chat"}}},
    {"api": {"docs": False}},
    {"api": {"batches": {"claimName": "kept"}}},
]
AROUND: list[dict[str, Any]] = [
    {"replicas": 3},
    {"paused": True},
    {"monitoring": {"podMonitor": True, "labels": {"release": "kube"}}},
    {"disruption": {"budget": "None"}},
    {"network": {"policy": "None"}},
    {"api": {"gateway": "EnvoyGateway"}},
    {"api": {"inferencePool": {"endpointPickerRef": {"name": "epp", "port": {"number": 9002}}}}},
    {"rollout": {"maxSurge": 2, "startupSeconds": 60}},
    {"resources": {"pricePerHour": "2.49"}},
]


def _spec(**fields: Any) -> Spec:
    return a_service(**fields).spec


@pytest.mark.parametrize("change", HOT, ids=str)
def test_a_hot_change_keeps_the_template(change: dict[str, Any]) -> None:
    """It reaches running pods."""
    assert template_hash(_spec(**change)) == template_hash(_spec())
    assert config_hash(_spec(**change)) != config_hash(_spec())


@pytest.mark.parametrize("change", COLD, ids=str)
def test_a_cold_change_is_another_template(change: dict[str, Any]) -> None:
    """It needs another process."""
    assert template_hash(_spec(**change)) != template_hash(_spec())
    assert config_hash(_spec(**change)) == config_hash(_spec())


@pytest.mark.parametrize("change", AROUND, ids=str)
def test_a_change_around_the_pods_is_neither(change: dict[str, Any]) -> None:
    """Scaling must not restart what runs."""
    assert template_hash(_spec(**change)) == template_hash(_spec())
    assert config_hash(_spec(**change)) == config_hash(_spec())


def test_a_default_that_is_written_out_changes_nothing() -> None:
    """The API server fills defaults in; so will a later version that knows more fields."""
    written = _spec(
        engine={
            "dtype": "Auto",
            "capacity": {"maxBatchSize": 256},
            "dynamic": {"maxWait": "100ms", "buckets": True},
        },
        lanes={},
    )

    assert template_hash(written) == template_hash(_spec())
    assert config_hash(written) == config_hash(_spec())


@pytest.mark.parametrize(
    ("fields", "template", "config"),
    [
        pytest.param({}, "ff1fe98b4d18ec3e", "06a58c0ac7973354", id="as declared"),
        pytest.param(
            {"sla": {"ttft": {"p99": "400ms"}, "itl": {"p99": "80ms"}, "objective": "0.95"}},
            "ff1fe98b4d18ec3e",
            "5cda81ecfb5b5776",
            id="targets",
        ),
        pytest.param(
            {
                "lanes": {
                    "interactive": {"share": "0.7"},
                    "batch": {"share": "0.3", "sla": {"ttft": {"p99": "30s"}}},
                }
            },
            "ff1fe98b4d18ec3e",
            "966dad97490c2906",
            id="lanes",
        ),
        pytest.param(
            {
                "tuning": {
                    "mode": "Observe",
                    "batchSize": {"min": 2, "max": 8, "initial": 4},
                    "interval": "2s",
                    "stepMargin": "0.95",
                    "experiment": {"name": "bolder", "policy": {"stepMargin": "1.05"}},
                }
            },
            "ff1fe98b4d18ec3e",
            "d62e5470445e72f3",
            id="policy",
        ),
        pytest.param(
            {"admission": {"maxQueuedTokens": 4096, "rejectAt": "0.5", "shedHopeless": False}},
            "ff1fe98b4d18ec3e",
            "811a4e5ca8074f70",
            id="admission",
        ),
        pytest.param(
            {
                "engine": {"lora": {"maxAdapters": 2}},
                "adapters": [
                    {"name": "sql", "uri": "file:///a"},
                    {"name": "hub", "uri": "hf://o/n", "revision": "abc"},
                ],
            },
            "12bf9f6adfeccde3",
            "6b0dac2247df889b",
            id="adapters",
        ),
        pytest.param(
            {
                "model": {
                    "uri": "hf://org/name",
                    "revision": "abc",
                    "servedName": "m",
                    "credentialsSecretRef": {"name": "hub"},
                    "cache": {"type": "PVC", "claimName": "cache"},
                }
            },
            "5b4b40aa05ce7649",
            "06a58c0ac7973354",
            id="model",
        ),
        pytest.param(
            {
                "engine": {
                    "dtype": "BFloat16",
                    "maxModelLen": 2048,
                    "swapMemory": "1Gi",
                    "prefixCaching": False,
                    "speculative": {"method": "NGram"},
                    "capacity": {"maxBatchSize": 64, "maxTokenBudget": 2048},
                }
            },
            "53d910e6e736bb03",
            "06a58c0ac7973354",
            id="engine",
        ),
        pytest.param(
            {"engine": {"scheduling": "Dynamic"}},
            "3208e03186627fd7",
            "06a58c0ac7973354",
            id="dynamic batches",
        ),
        pytest.param(
            {"rollout": {"maxSurge": 2, "drainSeconds": 5, "startupSeconds": 60}},
            "009b0a5390644df8",
            "06a58c0ac7973354",
            id="rollout of both kinds",
        ),
        pytest.param(
            {"rollout": {"maxSurge": "25%", "maxUnavailable": 1, "startupSeconds": 60}},
            "ff1fe98b4d18ec3e",
            "06a58c0ac7973354",
            id="rollout beside the pod",
        ),
        pytest.param(
            {"resources": {"gpu": {"count": 0}, "cpu": 2, "memory": "4Gi"}},
            "17945f24a33ace25",
            "06a58c0ac7973354",
            id="resources",
        ),
        pytest.param(
            {
                "scheduling": {
                    "nodeSelector": {"gpu": "a"},
                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                    "affinity": {"nodeAffinity": {}},
                    "topologySpread": "None",
                }
            },
            "5bc896218b113491",
            "06a58c0ac7973354",
            id="scheduling",
        ),
        pytest.param(
            {
                "api": {
                    "auth": {"apiKeysSecretRef": {"name": "keys"}},
                    "tls": {"secretRef": {"name": "tls"}},
                }
            },
            "424998d8b75f2a8f",
            "06a58c0ac7973354",
            id="doors",
        ),
        pytest.param(
            {"api": {"auth": {}}}, "3cc7b98d3f3f773e", "06a58c0ac7973354", id="empty door"
        ),
        pytest.param(
            {"podMetadata": {"labels": {"team": "chat"}, "annotations": {"a": "b"}}},
            "086e6c671bc921ef",
            "06a58c0ac7973354",
            id="pod metadata",
        ),
        pytest.param(
            {
                "replicas": 3,
                "paused": True,
                "disruption": {"budget": "None"},
                "network": {"policy": "None", "allowFrom": [{"podLabels": {"a": "b"}}]},
                "monitoring": {"podMonitor": True, "rules": True},
            },
            "ff1fe98b4d18ec3e",
            "06a58c0ac7973354",
            id="around the pods",
        ),
    ],
)
def test_hashes_are_pinned(fields: dict[str, Any], template: str, config: str) -> None:
    """A change of either restarts pods, or unsettles them, on every upgrade: think twice."""
    assert template_hash(_spec(**fields)) == template
    assert config_hash(_spec(**fields)) == config


def _says(part: type[Part]) -> Iterator[tuple[str, int]]:
    """Count, for each leaf below a part, the fields on the way that say what a change does."""
    for name, field in part.model_fields.items():
        own = sum(isinstance(mark, OnChange) for mark in field.metadata)
        below = [found for inner in _parts(field.annotation) for found in _says(inner)]
        for path, count in below or [("", 0)]:
            yield f"{name}.{path}".rstrip("."), own + count


def _parts(annotation: Any) -> Iterator[type[Part]]:
    """Find the parts in an annotation such as `Annotated[list[Peer], ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


@pytest.mark.parametrize(("path", "count"), [*_says(Spec)], ids=str)
def test_every_field_says_once_what_a_change_of_it_does(path: str, count: int) -> None:
    """Itself, or one field above it: a field that says nothing would be in neither hash."""
    assert count == 1, path


def test_a_field_that_does_not_say_what_a_change_does_is_an_error() -> None:
    """It is found when the operator starts, not when a pod has missed a change."""

    class Forgetful(Part):
        replicas: int = 1

    with pytest.raises(TypeError, match=r"Forgetful\.replicas does not say"):
        list(changes(Forgetful))


def test_the_tuner_reads_numbers_without_units() -> None:
    """The tuner counts in milliseconds and plain numbers; bounds end at the capacity."""
    spec = tuning_spec(
        _spec(
            sla={"ttft": {"p99": "1.2s"}, "itl": {"p99": "7.5ms"}, "objective": "0.999"},
            engine={"capacity": {"maxBatchSize": 32, "maxTokenBudget": 512}},
            tuning={"interval": "2s", "window": "5m", "batchSize": {"max": 16, "initial": 4}},
        )
    )

    assert (spec.sla.ttft_p99_ms, spec.sla.tpot_p99_ms, spec.sla.itl_p99_ms) == (1200.0, None, 7.5)
    assert spec.sla.objective == 0.999
    assert (spec.batch_size.max, spec.batch_size.initial) == (16, 4)
    assert (spec.token_budget.min, spec.token_budget.max) == (64, 512)
    assert (spec.interval_s, spec.window_s) == (2.0, 300.0)
