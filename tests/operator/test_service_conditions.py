"""Conditions follow from what was seen, purely."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline_api.hashes import template_hash
from paceline_api.status import Status
from paceline_operator.observe import (
    ContainerExit,
    ContainerStatus,
    HeldUp,
    Lack,
    Observation,
    ObservedPod,
)
from paceline_operator.service_conditions import service_conditions
from paceline_operator.write_plan import plan_writes
from paceline_testing.reports import a_report
from paceline_testing.services import a_pod, a_service
from paceline_tuner.condition import Condition

_HASH = template_hash(a_service().spec)
_SERVING = a_pod(template_hash=_HASH)
_WAITING = replace(_SERVING, is_ready=False, engine=ContainerStatus(), sidecar=ContainerStatus())
_LACK = Lack("NameTaken", "Service quick-pods exists")
_POOL = {"endpointPickerRef": {"name": "picker", "port": {"number": 9002}}}
_STARTING = replace(_SERVING, is_ready=False, engine=ContainerStatus(is_running=True))


def _observed(*pods: ObservedPod, status: dict[str, Any] | None = None, **spec: Any) -> Observation:
    service = a_service(**spec)
    deployment = {
        "metadata": {"generation": 2},
        "spec": {"replicas": service.spec.replicas},
        "status": {"observedGeneration": 2, "updatedReplicas": service.spec.replicas}
        | (status or {}),
    }
    return Observation(
        service=service,
        children={("Deployment", service.metadata.name): deployment},
        pods=pods,
        report=None,
        now=datetime.now(UTC),
    )


def _conditions(observed: Observation, *, problem: str = "") -> dict[str, Condition]:
    found = service_conditions(observed, plan_writes(observed.service.spec), problem=problem)
    return {condition.type: condition for condition in found}


def _said(condition: Condition) -> tuple[str, str]:
    return condition.status, condition.reason


def _ended(exit_: ContainerExit, *, waiting: str = "") -> ObservedPod:
    return replace(
        _STARTING, engine=ContainerStatus(waiting_reason=waiting, last_exit=exit_, restarts=1)
    )


def _left(reason: str, message: str = "because") -> ObservedPod:
    words = json.dumps({"reason": reason, "message": message})
    return _ended(ContainerExit("Error", 1, words), waiting="CrashLoopBackOff")


def test_serving_pods_are_ready() -> None:
    """And nothing is under way."""
    found = _conditions(_observed(_SERVING))

    assert _said(found["Ready"]) == ("True", "PodsReady")
    assert _said(found["Reconciling"]) == ("False", "Settled")
    assert _said(found["Stalled"]) == ("False", "NotStalled")
    assert _said(found["ModelAvailable"]) == ("True", "Loaded")
    assert _said(found["WorkloadAvailable"]) == ("True", "Available")


def test_ready_does_not_depend_on_the_sla() -> None:
    """A breach is an alert: health that follows traffic would block every rollout."""
    breach = Condition("SLAMet", "False", "Violated", "TPOT is above its target")
    observed = replace(_observed(_SERVING), report=a_report(conditions=(breach,)))
    found = _conditions(observed)

    assert _said(found["SLAMet"]) == ("False", "Violated")
    assert _said(found["Ready"]) == ("True", "PodsReady")


def test_pods_of_an_old_template_do_not_make_ready() -> None:
    """Ready speaks of the observed generation."""
    old = replace(_SERVING, template_hash="old")
    found = _conditions(_observed(old))

    assert _said(found["Ready"]) == ("False", "Progressing")
    assert _said(found["WorkloadAvailable"]) == ("True", "Available")
    assert _said(found["Reconciling"]) == ("True", "Progressing")


def test_pods_of_an_old_image_do_not_make_ready() -> None:
    """An upgrade of the operator brings new images under the same spec."""
    found = _conditions(_observed(_SERVING, status={"updatedReplicas": 0}))

    assert _said(found["Ready"]) == ("False", "Progressing")


def test_a_leaving_pod_does_not_count() -> None:
    """It serves its last requests."""
    found = _conditions(_observed(replace(_SERVING, is_leaving=True)))

    assert found["Ready"].status == "False"


def test_too_few_pods_are_not_ready() -> None:
    """Two were wanted."""
    assert _conditions(_observed(_SERVING, replicas=2))["Ready"].status == "False"


def test_no_wanted_pods_are_ready() -> None:
    """Scaled to zero is a wish fulfilled."""
    assert _said(_conditions(_observed(replicas=0))["Ready"]) == ("True", "ScaledToZero")


def test_an_unseen_deployment_is_not_ready() -> None:
    """Its controller has not looked yet: the counts are of the past."""
    observed = _observed(_SERVING, status={"observedGeneration": 1})

    assert _conditions(observed)["Ready"].status == "False"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [("builtin://x", "Loading"), ("hf://org/name", "Downloading")],
)
def test_a_running_engine_that_is_not_ready_loads(uri: str, reason: str) -> None:
    """The model is on its way."""
    observed = _observed(_STARTING, model={"uri": uri, "revision": "abc"})

    assert _said(_conditions(observed)["ModelAvailable"]) == ("False", reason)


@pytest.mark.parametrize(
    ("reason", "is_lasting"),
    [
        ("ModelNotFound", True),
        ("CorruptModel", True),
        ("DoesNotFit", True),
        ("UnsupportedModel", True),
        ("UnsupportedDevice", True),
        ("RevisionNotFound", True),
        ("BadSettings", True),
        ("CacheFull", True),
        ("DownloadFailed", False),
    ],
)
def test_the_engines_last_words_name_the_reason(reason: str, is_lasting: bool) -> None:
    """A network comes back; a corrupt file does not."""
    found = _conditions(_observed(_left(reason, "a sentence")))

    assert _said(found["ModelAvailable"]) == ("False", reason)
    assert found["ModelAvailable"].message == "a sentence"
    assert _said(found["Ready"]) == ("False", reason)
    assert found["Stalled"].status == ("True" if is_lasting else "False")


def test_a_recovered_engine_is_forgiven() -> None:
    """Its last exit stays in the pod's status for ever."""
    recovered = replace(
        _SERVING,
        engine=replace(_SERVING.engine, last_exit=ContainerExit("Error", 1, "{}"), restarts=3),
    )

    assert _said(_conditions(_observed(recovered))["ModelAvailable"]) == ("True", "Loaded")


_PENDING = replace(_STARTING, engine=ContainerStatus(), sidecar=ContainerStatus())


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (replace(_PENDING, unschedulable="0/1 nodes: 1 node had a taint"), "Unschedulable"),
        (replace(_PENDING, unschedulable="1 Insufficient nvidia.com/gpu"), "InsufficientGPU"),
        (replace(_PENDING, unschedulable="1 Insufficient cpu"), "Unschedulable"),
        (
            replace(_PENDING, unschedulable="gated", gates=("kueue.x-k8s.io/admission",)),
            "SchedulingGated",
        ),
        (
            replace(_PENDING, sidecar=ContainerStatus(waiting_reason="ImagePullBackOff")),
            "ImagePull",
        ),
        (
            replace(_PENDING, engine=ContainerStatus(waiting_reason="ErrImageNeverPull")),
            "ImagePull",
        ),
        (
            replace(_PENDING, engine=ContainerStatus(waiting_reason="CreateContainerConfigError")),
            "RolloutBlocked",
        ),
        (_ended(ContainerExit("OOMKilled", 137, ""), waiting="CrashLoopBackOff"), "OutOfMemory"),
        (
            _ended(ContainerExit("Error", 139, "Segmentation fault"), waiting="CrashLoopBackOff"),
            "CrashLoop",
        ),
        (_STARTING, "Progressing"),
    ],
    ids=[
        "taint",
        "gpu",
        "cpu",
        "gate",
        "pull",
        "never pull",
        "no secret",
        "out of memory",
        "crash",
        "starting",
    ],
)
def test_the_workload_says_what_is_in_its_way(pod: ObservedPod, reason: str) -> None:
    """One word that tells whom to ask."""
    found = _conditions(_observed(pod))

    assert _said(found["WorkloadAvailable"]) == ("False", reason)


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ("0/2 nodes are available: 2 cannot allocate all claims.", "InsufficientGPU"),
        ("1 Insufficient nvidia.com/gpu", "Unschedulable"),
    ],
    ids=["claim", "another's"],
)
def test_a_gpu_by_claim_is_lacked_in_other_words(note: str, reason: str) -> None:
    """The scheduler names a resource, or no more than that claims cannot be met."""
    claimed: dict[str, Any] = {
        "resources": {"gpu": {"claim": "gpu"}, "claims": [{"name": "gpu"}]},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    }
    found = _conditions(_observed(replace(_PENDING, unschedulable=note), **claimed))

    assert _said(found["WorkloadAvailable"]) == ("False", reason)


def test_a_crash_without_words_is_not_the_models_fault() -> None:
    """It may be, but nobody knows."""
    crashed = _ended(ContainerExit("Error", 139, "Segmentation fault"), waiting="CrashLoopBackOff")
    found = _conditions(_observed(crashed))

    assert found["ModelAvailable"].status == "Unknown"
    assert "Segmentation fault" in found["WorkloadAvailable"].message


def test_a_rollout_past_its_deadline_is_blocked() -> None:
    """The Deployment's controller has given up waiting."""
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    found = _conditions(_observed(_STARTING, status={"conditions": [late]}))

    assert _said(found["WorkloadAvailable"]) == ("False", "RolloutBlocked")
    assert found["Stalled"].status == "True"
    assert found["Reconciling"].status == "False"


def test_pods_refused_by_a_quota_are_named() -> None:
    """There is no pod that could tell."""
    refused = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "exceeded quota",
    }
    found = _conditions(_observed(status={"conditions": [refused]}))

    assert found["WorkloadAvailable"].message == "exceeded quota"


def test_a_refused_write_is_a_condition() -> None:
    """With the API server's own words."""
    found = _conditions(_observed(_SERVING), problem="Service quick exists")

    assert _said(found["Ready"]) == ("False", "RolloutBlocked")
    assert found["Stalled"].message == "Service quick exists"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"model": {"uri": "s3://bucket/model"}}, "s3://"),
        (
            {"engine": {"speculative": {"method": "Draft", "draftModelUri": "s3://bucket/a"}}},
            "engine.speculative.draftModelUri s3://",
        ),
    ],
    ids=["s3", "draft on s3"],
)
def test_what_is_not_supported_is_said(spec: dict[str, Any], field: str) -> None:
    """Before anything is written."""
    observed = _observed(**spec)
    found = _conditions(observed)

    assert _said(found["Ready"]) == ("False", "Unsupported")
    assert field in found["Ready"].message
    assert _said(found["Stalled"]) == ("True", "Unsupported")
    assert not plan_writes(observed.service.spec).writes_children


def test_a_paused_service_waits_for_nothing() -> None:
    """Flux and Argo CD must not wait either."""
    found = _conditions(_observed(_STARTING, paused=True))

    assert _said(found["Reconciling"]) == ("False", "Paused")
    assert _said(found["TuningActive"]) == ("False", "Paused")
    assert not plan_writes(a_service(paused=True).spec).writes_children


def test_without_a_pod_nothing_is_known_of_the_sla() -> None:
    """Neither met nor violated."""
    found = _conditions(_observed(_STARTING))

    for kind in (
        "TelemetryAvailable",
        "SLAMet",
        "SLAAchievable",
        "DeviceHealthy",
        "TuningActive",
    ):
        assert _said(found[kind]) == ("Unknown", "NoReadyPods")


def test_a_restarted_operator_repeats_what_status_says() -> None:
    """It has not measured yet: that is no transition."""
    observed = _observed(_SERVING)
    condition = {
        "type": "SLAMet",
        "status": "True",
        "reason": "Met",
        "message": "all targets hold",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    service = observed.service.model_validate(
        {
            "metadata": {"name": "quick"},
            "spec": {"model": {"uri": "builtin://x"}},
            "status": {"conditions": [condition]},
        }
    )

    assert _said(_conditions(replace(observed, service=service))["SLAMet"]) == ("True", "Met")


def test_no_message_holds_a_number_that_moves() -> None:
    """A condition whose message counts is a write for every count."""
    for pods in ((), (_STARTING,), (_SERVING,)):
        for condition in _conditions(_observed(*pods, replicas=2)).values():
            assert not any(character.isdigit() for character in condition.message), condition


@pytest.mark.parametrize(
    ("spec", "volume", "said"),
    [
        (
            {"api": {"auth": {"apiKeysSecretRef": {"name": "callers"}}}},
            "api-keys",
            "Secret callers with the key keys (spec.api.auth.apiKeysSecretRef)",
        ),
        (
            {"api": {"tls": {"secretRef": {"name": "cert"}}}},
            "tls",
            "Secret cert with the key tls.crt (spec.api.tls.secretRef)",
        ),
        ({}, "runtime-token", "Secret quick-runtime-token with the key token"),
        (
            {"podOverrides": {"volumes": [{"name": "ca", "secretName": "roots"}]}},
            "mnt-ca",
            "Secret roots (spec.podOverrides.volumes, ca)",
        ),
    ],
    ids=["keys", "certificate", "token", "a volume of the spec"],
)
@pytest.mark.parametrize(
    "words",
    ['secret "callers" not found', "references non-existent secret key: keys"],
    ids=["no Secret", "no key"],
)
def test_a_missing_secret_is_named_with_its_key(
    spec: dict[str, Any], volume: str, said: str, words: str
) -> None:
    """The pod's own status says ContainerCreating, for ever."""
    note = f'MountVolume.SetUp failed for volume "{volume}" : {words}'
    held = replace(_observed(_WAITING, **spec), held_up=HeldUp("quick-1", note))

    found = _conditions(held)

    assert _said(found["WorkloadAvailable"]) == ("False", "SecretMissing")
    assert said in found["WorkloadAvailable"].message
    assert words in found["WorkloadAvailable"].message
    assert _said(found["Ready"]) == ("False", "SecretMissing")
    assert _said(found["Stalled"]) == ("True", "SecretMissing")


def test_a_volume_that_cannot_be_mounted_is_told_in_the_kubelets_words() -> None:
    """It may still come: a disk that another node lets go."""
    note = 'AttachVolume.Attach failed for volume "pvc-1" : disk is attached elsewhere'
    found = _conditions(replace(_observed(_WAITING), held_up=HeldUp("quick-1", note)))

    assert _said(found["WorkloadAvailable"]) == ("False", "VolumeUnavailable")
    assert note in found["WorkloadAvailable"].message
    assert _said(found["Stalled"]) == ("False", "NotStalled")


def test_missing_credentials_are_named_with_their_key() -> None:
    """The kubelet says it of the container that reads them."""
    waiting = ContainerStatus(
        waiting_reason="CreateContainerConfigError", waiting_message='secret "hub" not found'
    )
    model = {
        "uri": "hf://a/b",
        "revision": "c",
        "credentialsSecretRef": {"name": "hub", "key": "read"},
    }
    found = _conditions(_observed(replace(_WAITING, engine=waiting), model=model))

    assert _said(found["WorkloadAvailable"]) == ("False", "SecretMissing")
    assert "Secret hub with the key read" in found["WorkloadAvailable"].message


def test_a_token_that_pods_refuse_comes_with_the_command_that_mends_it() -> None:
    """The operator may not read or overwrite the Secret; who may is told how."""
    refused = Condition("TelemetryAvailable", "False", "TokenRefused", "pods refuse the token")
    found = _conditions(replace(_observed(_SERVING), report=a_report(conditions=(refused,))))

    assert _said(found["TelemetryAvailable"]) == ("False", "TokenRefused")
    command = "kubectl -n default delete secret quick-runtime-token"
    assert found["TelemetryAvailable"].message.endswith(command)
    assert _said(found["Ready"]) == ("True", "PodsReady")  # they serve, untuned


@pytest.mark.parametrize(
    ("spec", "lacks", "said"),
    [
        ({}, (), None),
        ({"monitoring": {"rules": True}}, (), ("True", "Written")),
        ({"api": {"gateway": "EnvoyGateway"}}, (), ("True", "Written")),
        ({"api": {"inferencePool": _POOL}}, (), ("True", "Written")),
        ({}, (_LACK,), ("False", "NameTaken")),
        ({"monitoring": {"podMonitor": True}}, None, None),
    ],
    ids=[
        "nothing asked for",
        "alerts written",
        "policy written",
        "pool written",
        "one is missing",
        "none was tried",
    ],
)
def test_what_serving_does_not_need_is_told_apart(
    spec: dict[str, Any], lacks: tuple[Lack, ...] | None, said: tuple[str, str] | None
) -> None:
    """The service is as ready as without it."""
    observed = replace(_observed(_SERVING, **spec), lacks=lacks)
    found = _conditions(observed)

    assert (_said(found["ExtrasAvailable"]) if "ExtrasAvailable" in found else None) == said
    assert found["Stalled"].status == "False"


def test_a_frozen_service_repeats_what_was_missing() -> None:
    """Nobody looks while it is paused."""
    before = {
        "type": "ExtrasAvailable",
        "status": "False",
        "reason": "KindMissing",
        "message": "the cluster has no PodMonitor",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    observed = _observed(_SERVING, monitoring={"podMonitor": True})
    status = Status.model_validate({"conditions": [before]})
    service = observed.service.model_copy(update={"status": status})

    found = _conditions(replace(observed, service=service))

    assert _said(found["ExtrasAvailable"]) == ("False", "KindMissing")
