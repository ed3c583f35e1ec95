"""A spec becomes manifests, purely."""

import json
from typing import Any

import pytest

from paceline_api.labels import Manifest
from paceline_operator.render.children import Surroundings, children
from paceline_sidecar.routes.probes import HOLD_S
from paceline_testing.services import a_service

_AROUND = Surroundings("engine:1", "sidecar:1", "paceline-system")


def _rendered(**spec: Any) -> dict[str, Manifest]:
    found = children(a_service(**spec), _AROUND, "hash")
    return {manifest["kind"]: manifest for manifest in found.wanted}


def _pod(**spec: Any) -> Manifest:
    pod: Manifest = _rendered(**spec)["Deployment"]["spec"]["template"]["spec"]
    return pod


def _engine(**spec: Any) -> Manifest:
    (engine,) = _pod(**spec)["containers"]
    return dict(engine)


def _sidecar(**spec: Any) -> Manifest:
    (sidecar,) = _pod(**spec)["initContainers"]
    return dict(sidecar)


def _environment(container: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def _volume(name: str, **spec: Any) -> Manifest:
    return next(dict(volume) for volume in _pod(**spec)["volumes"] if volume["name"] == name)


def test_the_sidecar_starts_first_and_leaves_last() -> None:
    """A native sidecar: an init container that is restarted."""
    sidecar = _sidecar()

    assert sidecar["restartPolicy"] == "Always"
    assert [port["containerPort"] for port in sidecar["ports"]] == [8000, 8001]


def test_the_probes_ask_the_admin_port() -> None:
    """The public one may be behind TLS and an API key."""
    sidecar = _sidecar()

    for probe, path in (
        ("startupProbe", "/health/live"),
        ("livenessProbe", "/health/live"),
        ("readinessProbe", "/health/ready"),
    ):
        assert sidecar[probe]["httpGet"] == {"path": path, "port": "admin", "scheme": "HTTP"}


def test_an_engine_that_comes_back_is_not_ready_before_the_sidecar_says_so() -> None:
    """A container without a probe is ready when it runs, long before its model is loaded."""
    probe = _engine()["readinessProbe"]

    assert probe["httpGet"] == {"path": "/health/ready", "port": 8001, "scheme": "HTTP"}


def test_a_probe_waits_longer_than_the_sidecar_holds_its_answer() -> None:
    """A held answer that comes too late would be a failed probe that says nothing."""
    for probe in (_engine()["readinessProbe"], _sidecar()["readinessProbe"]):
        assert probe["timeoutSeconds"] >= HOLD_S + 1


@pytest.mark.parametrize("container", [_engine(), _sidecar()], ids=["engine", "sidecar"])
def test_a_container_holds_no_rights(container: Manifest) -> None:
    """The restricted pod security standard, and a root file system that nobody writes."""
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_pod_knows_nothing_of_the_cluster() -> None:
    """A tenant never gets a service account's token."""
    pod = _pod()

    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532


def test_without_a_gpu_the_engine_is_told_so() -> None:
    """Count 0 is the CPU, not a pod that waits for a device for ever."""
    engine = _engine(resources={"gpu": {"count": 0}, "cpu": "1500m", "memory": "2Gi"})

    assert _environment(engine)["PACELINE_ENGINE_DEVICE"] == "cpu"
    assert _environment(engine)["PACELINE_ENGINE_CPUS"] == "1.5"
    assert engine["resources"] == {
        "requests": {"cpu": "1500m", "memory": "2Gi"},
        "limits": {"memory": "2Gi"},
    }


def test_exclusive_cpus_make_the_pod_guaranteed() -> None:
    """Every container has limits that equal its requests, and the engine's CPUs are whole."""
    spec = {"resources": {"gpu": {"count": 0}, "cpu": 4, "memory": "8Gi", "exclusiveCpus": True}}

    resources = [container["resources"] for container in (_engine(**spec), _sidecar(**spec))]

    assert all(each["requests"] == each["limits"] for each in resources)
    assert [each["limits"]["cpu"] for each in resources] == ["4", "900m"]
    assert "cpu" not in _engine(resources={"cpu": 4})["resources"]["limits"]


def test_ranks_share_the_cpus_and_meet_within_the_pod() -> None:
    """The engine divides the pod's CPUs among ranks that listen where nothing outside can call."""
    spec = {"engine": {"tensorParallelSize": 2}, "resources": {"gpu": {"count": 0}, "cpu": 7}}
    environment = _environment(_engine(**spec))

    assert environment["PACELINE_ENGINE_TENSOR_PARALLEL_SIZE"] == "2"
    assert environment["PACELINE_ENGINE_CPUS"] == "7"
    assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "lo"
    assert "dshm" not in {volume["name"] for volume in _pod(**spec)["volumes"]}


def test_gpus_that_share_a_model_get_shared_memory() -> None:
    """A container's own 64 MiB are too few for NCCL."""
    spec: dict[str, Any] = {"engine": {"tensorParallelSize": 2}}
    two = {"resources": {"gpu": {"count": 2}}}
    asked = {"resources": {"gpu": {"count": 2}, "sharedMemory": "8Gi"}}

    assert _volume("dshm", **spec, **two)["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert _volume("dshm", **spec, **asked)["emptyDir"]["sizeLimit"] == "8Gi"
    assert "dshm" not in {volume["name"] for volume in _pod()["volumes"]}


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        (
            "pvc://weights/small",
            {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
        ),
        (
            "oci://reg/small:1",
            {"image": {"reference": "reg/small:1", "pullPolicy": "IfNotPresent"}},
        ),
        ("hf://org/small", None),
    ],
    ids=["pvc", "oci", "hf"],
)
def test_a_draft_model_has_a_place_of_its_own(uri: str, source: Manifest | None) -> None:
    """Beside the model's, whose claim may be the same."""
    speculative = {"method": "Draft", "draftModelUri": uri, "draftModelRevision": "abc"}
    spec: dict[str, Any] = {
        "model": {"uri": "pvc://weights/large"},
        "engine": {"speculative": speculative},
    }
    environment = _environment(_engine(**spec))
    mounts = {mount["name"]: mount["mountPath"] for mount in _engine(**spec)["volumeMounts"]}

    assert environment["PACELINE_ENGINE_SPECULATIVE"] == "draft"
    assert environment["PACELINE_ENGINE_DRAFT_MODEL_URI"] == uri
    assert environment["PACELINE_ENGINE_DRAFT_MODEL_REVISION"] == "abc"
    assert environment["PACELINE_ENGINE_MODEL_MOUNT"] == mounts["model"]
    if source is None:
        assert "draft-model" not in mounts
    else:
        assert _volume("draft-model", **spec) == {"name": "draft-model"} | source
        assert environment["PACELINE_ENGINE_DRAFT_MODEL_MOUNT"] == mounts["draft-model"]


def test_a_drafts_own_quantization_is_told_where_one_is_asked_for() -> None:
    """Without it the draft model is quantised as the model is."""
    asked = {"method": "Draft", "draftModelUri": "builtin://x", "draftQuantization": "INT8"}
    plain = {"method": "Draft", "draftModelUri": "builtin://x"}

    name = "PACELINE_ENGINE_DRAFT_QUANTIZATION"
    assert _environment(_engine(engine={"speculative": asked}))[name] == "int8"
    assert name not in _environment(_engine(engine={"speculative": plain}))


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ("AsStored", "as_stored"),
        ("FP8", "fp8"),
        ("FP8Dynamic", "fp8_dynamic"),
        ("INT8", "int8"),
    ],
)
def test_what_is_quantised_is_rendered_in_the_engines_words(asked: str, word: str) -> None:
    speculative = {"method": "Draft", "draftModelUri": "builtin://x", "draftQuantization": asked}
    engine = {"quantization": asked, "kvCacheDtype": "FP8", "speculative": speculative}

    environment = _environment(_engine(engine=engine))

    assert environment["PACELINE_ENGINE_QUANTIZATION"] == word
    assert environment["PACELINE_ENGINE_DRAFT_QUANTIZATION"] == word
    assert environment["PACELINE_ENGINE_KV_CACHE_DTYPE"] == "fp8"


def test_adapters_have_room_and_a_claim_but_are_not_in_the_pod() -> None:
    """Which ones there are is hot: it is in the runtime configuration, as paths of the engine."""
    lora = {"maxAdapters": 4, "maxRank": 32, "claimName": "team"}
    adapters = [
        {"name": "sql", "uri": "pvc://team/lora/sql"},
        {"name": "law", "uri": "hf://org/law", "revision": "abc"},
        {"name": "own", "uri": "file:///opt/own"},
    ]
    spec: dict[str, Any] = {"engine": {"lora": lora}, "adapters": adapters}
    environment = _environment(_engine(**spec))
    mounts = {mount["name"]: mount for mount in _engine(**spec)["volumeMounts"]}
    config = json.loads(_rendered(**spec)["ConfigMap"]["data"]["runtime.json"])

    assert environment["PACELINE_ENGINE_MAX_LORAS"] == "4"
    assert environment["PACELINE_ENGINE_MAX_LORA_RANK"] == "32"
    assert _volume("adapters", **spec)["persistentVolumeClaim"] == {
        "claimName": "team",
        "readOnly": True,
    }
    assert mounts["adapters"] == {"name": "adapters", "mountPath": "/adapters", "readOnly": True}
    assert config["adapters"] == [
        {"name": "sql", "path": "/adapters/lora/sql"},
        {"name": "law", "path": "hf://org/law@abc"},
        {"name": "own", "path": "/opt/own"},
    ]
    assert _pod(engine={"lora": lora}) == _pod(**spec)


def test_a_service_without_adapters_says_nothing_of_them() -> None:
    """An engine that takes none would refuse them; the file stays as it was."""
    assert "adapters" not in json.loads(_rendered()["ConfigMap"]["data"]["runtime.json"])


def test_host_memory_is_rendered_in_bytes() -> None:
    """The engine counts in bytes."""
    environment = _environment(_engine(engine={"swapMemory": "1.5Gi", "scheduling": "Static"}))

    assert environment["PACELINE_ENGINE_SWAP_BYTES"] == str(3 << 29)
    assert environment["PACELINE_ENGINE_SCHEDULING"] == "static"


def test_how_dynamic_batches_gather_is_rendered_where_it_is_said() -> None:
    """Defaults that are written out are no other template."""
    asked = {"scheduling": "Dynamic", "dynamic": {"maxWait": "250ms", "buckets": False}}
    defaults = {"scheduling": "Dynamic", "dynamic": {"maxWait": "100ms", "buckets": True}}

    environment = _environment(_engine(engine=asked))

    assert environment["PACELINE_ENGINE_DYNAMIC_MAX_WAIT_S"] == "0.25"
    assert environment["PACELINE_ENGINE_DYNAMIC_BUCKETS"] == "false"
    assert _engine(engine=defaults) == _engine(engine={"scheduling": "Dynamic"})


def test_what_nobody_asked_for_is_not_rendered() -> None:
    """A variable more would be another template: an upgraded operator would roll every pod."""
    assert _environment(_engine()).keys() == {
        "PACELINE_ENGINE_RUN_DIR",
        "PACELINE_ENGINE_MODEL_URI",
        "PACELINE_ENGINE_MODEL_MOUNT",
        "PACELINE_ENGINE_CACHE_DIR",
        "PACELINE_ENGINE_DEVICE",
        "PACELINE_ENGINE_DTYPE",
        "PACELINE_ENGINE_MAX_BATCH_SIZE",
        "PACELINE_ENGINE_MAX_TOKEN_BUDGET",
        "PACELINE_ENGINE_KV_CACHE_MEMORY_FRACTION",
        "PACELINE_ENGINE_PREFIX_CACHING",
        "PACELINE_ENGINE_SPECULATIVE",
        "PACELINE_ENGINE_SPECULATIVE_TOKENS",
        "HOME",
    }


def test_gpus_are_requested_by_their_resource_name() -> None:
    """Other vendors advertise under other names."""
    engine = _engine(resources={"gpu": {"count": 2, "resourceName": "amd.com/gpu"}})

    assert engine["resources"]["limits"] == {"amd.com/gpu": "2"}


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        (
            "oci://registry.example/model:1",
            {"image": {"reference": "registry.example/model:1", "pullPolicy": "IfNotPresent"}},
        ),
        (
            "pvc://weights/llama/8b",
            {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
        ),
    ],
    ids=["oci", "pvc"],
)
def test_a_model_volume_is_mounted_read_only(uri: str, source: Manifest) -> None:
    """The kubelet brings the weights: the pod downloads nothing."""
    spec = {"model": {"uri": uri}}

    assert _volume("model", **spec) == {"name": "model"} | source
    mounts = {mount["name"]: mount for mount in _engine(**spec)["volumeMounts"]}
    assert mounts["model"] == {"name": "model", "mountPath": "/model", "readOnly": True}


def test_a_builtin_model_needs_no_volume() -> None:
    """It is in the image."""
    assert "model" not in {volume["name"] for volume in _pod()["volumes"]}


def test_a_private_model_gets_its_token() -> None:
    """From a Secret that the operator never reads."""
    model = {
        "uri": "hf://org/name",
        "revision": "abc",
        "credentialsSecretRef": {"name": "hub", "key": "hf"},
    }
    entry = next(entry for entry in _engine(model=model)["env"] if entry["name"] == "HF_TOKEN")

    assert entry["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "hf"}}


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        ({"sizeLimit": "20Gi"}, {"emptyDir": {"sizeLimit": "20Gi"}}),
        (
            {"type": "PVC", "claimName": "cache"},
            {"persistentVolumeClaim": {"claimName": "cache"}},
        ),
        (
            {"type": "HostPath"},
            {"hostPath": {"path": "/var/cache/paceline", "type": "DirectoryOrCreate"}},
        ),
    ],
    ids=["emptyDir", "pvc", "hostPath"],
)
def test_the_cache_lies_where_the_spec_says(cache: Manifest, source: Manifest) -> None:
    """Downloads go with the pod, or outlive it."""
    model = {"uri": "hf://org/name", "revision": "abc", "cache": cache}

    assert _volume("cache", model=model) == {"name": "cache"} | source


def test_keys_and_certificates_are_files_of_the_sidecar() -> None:
    """Only the sidecar has a door."""
    api = {
        "auth": {"apiKeysSecretRef": {"name": "keys"}},
        "tls": {"secretRef": {"name": "certificate"}},
    }
    environment = _environment(_sidecar(api=api))
    mounted = {mount["mountPath"] for mount in _sidecar(api=api)["volumeMounts"]}

    for variable in ("API_KEYS_FILE", "TLS_CERT_FILE", "TLS_KEY_FILE"):
        folder = environment[f"PACELINE_SIDECAR_{variable}"].rsplit("/", 1)[0]
        assert folder in mounted
    assert not mounted & {mount["mountPath"] for mount in _engine(api=api)["volumeMounts"]} - {
        "/run/paceline",
        "/tmp",
    }


def test_the_admin_port_speaks_tls_where_the_operator_can_verify_it() -> None:
    """The kubelet asks over TLS; monitors find the port by its name. Without, nothing changes."""
    plain = {"tls": {"secretRef": {"name": "certificate"}}}
    both = {"tls": plain["tls"] | {"caBundle": "-----BEGIN CERTIFICATE-----"}}

    assert _environment(_sidecar(api=both))["PACELINE_SIDECAR_ADMIN_TLS"] == "true"
    assert _sidecar(api=both)["ports"][1]["name"] == "admin-tls"
    assert _schemes(both) == {"HTTPS"}
    assert "PACELINE_SIDECAR_ADMIN_TLS" not in _environment(_sidecar(api=plain))
    assert _sidecar(api=plain)["ports"][1]["name"] == "admin"
    assert _schemes(plain) == {"HTTP"}


def _schemes(api: Manifest) -> set[str]:
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    sidecar, engine = _sidecar(api=api), _engine(api=api)
    asked = [*(sidecar[probe] for probe in probes), engine["readinessProbe"]]
    return {probe["httpGet"]["scheme"] for probe in asked}


def test_there_is_time_to_drain() -> None:
    """The grace period is longer than the drain; both hooks wait for it."""
    rollout = {"drainSeconds": 300}

    assert _pod(rollout=rollout)["terminationGracePeriodSeconds"] > 300
    assert _environment(_sidecar(rollout=rollout))["PACELINE_SIDECAR_DRAIN_S"] == "300"


def test_batches_are_kept_where_a_claim_is_named() -> None:
    """In the sidecar alone, and in no other template."""
    api = {"batches": {"claimName": "kept"}}
    folder = _environment(_sidecar(api=api))["PACELINE_SIDECAR_BATCH_DIR"]

    assert _volume("batches", api=api) == {
        "name": "batches",
        "persistentVolumeClaim": {"claimName": "kept"},
    }
    assert {"name": "batches", "mountPath": folder} in _sidecar(api=api)["volumeMounts"]
    assert "batches" not in {mount["name"] for mount in _engine(api=api)["volumeMounts"]}
    assert "PACELINE_SIDECAR_BATCH_DIR" not in _environment(_sidecar())


def test_the_document_of_the_api_is_left_out_where_asked() -> None:
    """Only then does the template say so: other pods stay as they are."""
    assert _environment(_sidecar(api={"docs": False}))["PACELINE_SIDECAR_DOCS"] == "false"
    assert "PACELINE_SIDECAR_DOCS" not in _environment(_sidecar())
    assert "preStop" in _engine()["lifecycle"]
    assert "preStop" in _sidecar()["lifecycle"]


@pytest.mark.parametrize(
    ("spread", "expected"),
    [("Preferred", "ScheduleAnyway"), ("Required", "DoNotSchedule"), ("None", None)],
)
def test_pods_spread_over_nodes(spread: str, expected: str | None) -> None:
    """One node's loss should not be the service's."""
    constraints = _pod(scheduling={"topologySpread": spread}).get("topologySpreadConstraints", [])

    assert [entry["whenUnsatisfiable"] for entry in constraints] == ([expected] if expected else [])


def test_scheduling_is_passed_on() -> None:
    """Field by field; there is no way to pass a whole pod spec."""
    scheduling = {
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
    }
    pod = _pod(scheduling=scheduling)

    assert {field: pod[field] for field in scheduling} == scheduling


def test_the_image_of_the_spec_wins() -> None:
    """Over the operator's own."""
    assert _engine()["image"] == "engine:1"
    assert _engine(engine={"image": "mine:2"})["image"] == "mine:2"


def test_own_labels_cannot_break_the_selector() -> None:
    """PodMetadata adds; it does not replace."""
    labels = {"team": "chat", "serving.paceline.dev/service": "other"}
    deployment = _rendered(podMetadata={"labels": labels})["Deployment"]
    rendered = deployment["spec"]["template"]["metadata"]["labels"]

    assert rendered["team"] == "chat"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= rendered.items()
    assert rendered["serving.paceline.dev/service"] == "quick"


@pytest.mark.parametrize(
    ("spec", "has_budget"),
    [
        ({"replicas": 1}, False),
        ({"replicas": 2}, True),
        ({"replicas": 2, "disruption": {"budget": "None"}}, False),
    ],
    ids=["one", "two", "two without"],
)
def test_a_budget_guards_more_than_one_pod(spec: dict[str, Any], has_budget: bool) -> None:
    """With one pod it would only block every drain."""
    assert ("PodDisruptionBudget" in _rendered(**spec)) is has_budget


def test_a_fresh_pod_starts_from_the_runtime_configuration() -> None:
    """While the operator is away: the hot fields of the spec, in the runtime API's words."""
    manifest = _rendered(
        sla={"ttft": {"p99": "1.5s"}},
        tuning={"batchSize": {"initial": 24}, "tokenBudget": {"max": 512}},
        admission={"requestTimeout": "2m"},
    )["ConfigMap"]
    config = json.loads(manifest["data"]["runtime.json"])

    assert config["max_batch_size"] == 24
    assert config["token_budget"] == 512
    assert config["sla"]["ttft_p99_ms"] == 1500.0
    assert config["sla"]["tpot_p99_ms"] is None
    assert config["admission"]["request_timeout_s"] == 120.0


@pytest.mark.parametrize(
    ("sla", "mode", "target_ms"),
    [
        ({"itl": {"p99": "50ms"}}, "Auto", pytest.approx(45, abs=3)),
        ({"ttft": {"p99": "1s"}, "tpot": {"p99": "100ms"}}, "Auto", pytest.approx(105, abs=5)),
        ({"ttft": {"p99": "1s"}}, "Auto", None),
        ({"itl": {"p99": "50ms"}}, "Observe", None),
    ],
)
def test_a_fresh_pod_paces_its_first_steps(
    sla: dict[str, object], mode: str, target_ms: object
) -> None:
    """Until the operator's first word it would run whole prompts beside what decodes."""
    manifest = _rendered(sla=sla, tuning={"mode": mode})["ConfigMap"]

    assert json.loads(manifest["data"]["runtime.json"])["step_target_ms"] == target_ms


def test_rendering_is_deterministic() -> None:
    """The same spec gives the same bytes, or every look would write."""
    assert json.dumps(_rendered()) == json.dumps(_rendered())
