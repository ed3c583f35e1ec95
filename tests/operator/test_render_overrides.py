"""What a spec may add to its pods, and where it lands."""

from typing import Any

from paceline_api.labels import Manifest
from paceline_operator.render.pod import pod_template
from paceline_testing.services import a_service


def _pod(**spec: Any) -> Manifest:
    template = pod_template(
        a_service(**spec), engine_image="engine:1", sidecar_image="sidecar:1", template_hash="h"
    )
    found: Manifest = template["spec"]
    return found


def _overridden(**fields: Any) -> Manifest:
    return _pod(podOverrides=fields)


def test_a_pod_without_them_has_none_of_their_fields() -> None:
    """A new version of the operator restarts nothing."""
    pod = _pod()

    assert pod.keys().isdisjoint({"imagePullSecrets", "hostAliases", "dnsConfig"})
    assert "supplementalGroups" not in pod["securityContext"]
    assert not [volume for volume in pod["volumes"] if volume["name"].startswith("mnt-")]


def test_variables_reach_the_engine_and_each_name_once() -> None:
    """Server-side apply refuses a list with two entries of one name."""
    ranks = {
        "engine": {"tensorParallelSize": 2},
        "resources": {"gpu": {"count": 2}},
    }
    added = [
        {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"},
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
    ]
    pod = _pod(podOverrides={"env": added}, **ranks)
    (engine,), (sidecar,) = pod["containers"], pod["initContainers"]

    for variable in added:
        assert engine["env"].count(variable) == 1
        assert variable not in sidecar["env"]
    names = [variable["name"] for variable in engine["env"]]
    assert len(names) == len({*names})


def test_opentelemetrys_variables_reach_the_sidecar_alone() -> None:
    """It is the one that traces; a pod without them is rendered as before."""
    added = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
    pod, before = _overridden(sidecarEnv=[added]), _pod()
    (engine,), (sidecar,) = pod["containers"], pod["initContainers"]

    assert sidecar["env"] == [*before["initContainers"][0]["env"], added]
    assert engine == before["containers"][0]


def test_volumes_are_read_by_the_engine_below_mnt() -> None:
    """They can hide nothing of the image, nor of what the operator mounts."""
    pod = _overridden(
        volumes=[
            {"name": "ca", "configMapName": "bundle"},
            {"name": "keys", "secretName": "keys"},
            {"name": "models", "claimName": "team"},
        ]
    )
    sources = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}

    assert sources["mnt-ca"]["configMap"] == {"name": "bundle"}
    assert sources["mnt-keys"]["secret"] == {"secretName": "keys", "defaultMode": 0o440}
    claim = {"claimName": "team", "readOnly": True}
    assert sources["mnt-models"]["persistentVolumeClaim"] == claim
    for name in ("ca", "keys", "models"):
        mount = {"name": f"mnt-{name}", "mountPath": f"/mnt/{name}", "readOnly": True}
        assert mounts[f"mnt-{name}"] == mount


def test_names_and_groups_are_the_pods() -> None:
    """The user stays the one that is not root."""
    aliases = [{"ip": "10.0.0.9", "hostnames": ["nas"]}]
    dns = {"searches": ["corp.example"], "options": [{"name": "ndots", "value": "2"}]}
    pod = _overridden(hostAliases=aliases, dnsConfig=dns, supplementalGroups=[2000])

    assert pod["hostAliases"] == aliases
    assert pod["dnsConfig"] == dns
    assert pod["securityContext"]["supplementalGroups"] == [2000]
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_pull_secrets_are_the_pods() -> None:
    """The kubelet uses them for image volumes too."""
    assert _pod(imagePullSecrets=[{"name": "registry"}])["imagePullSecrets"] == [
        {"name": "registry"}
    ]


def _sidecar(**spec: Any) -> Manifest:
    found: Manifest = _pod(**spec)["initContainers"][0]["resources"]
    return found


def test_the_sidecar_asks_for_what_the_spec_says() -> None:
    """Its memory is a limit too, as the engine's is."""
    assert _sidecar() == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    assert _sidecar(sidecar={"resources": {"cpu": 2, "memory": "1Gi"}}) == {
        "requests": {"cpu": "2", "memory": "1Gi"},
        "limits": {"memory": "1Gi"},
    }


def test_a_guaranteed_pod_stays_guaranteed() -> None:
    """Whatever the sidecar asks for, it is limited to."""
    exclusive = {"exclusiveCpus": True, "cpu": 4, "memory": "8Gi"}
    amounts = {"cpu": "500m", "memory": "1Gi"}

    assert _sidecar(resources=exclusive, sidecar={"resources": {"cpu": "500m"}}) == {
        "requests": amounts,
        "limits": amounts,
    }


def test_empty_lists_are_left_out() -> None:
    """The API server drops them, and would see a change at each apply."""
    pod = _overridden(dnsConfig={"nameservers": [], "searches": ["corp.example"]})

    assert pod["dnsConfig"] == {"searches": ["corp.example"]}
    assert "dnsConfig" not in _overridden(dnsConfig={"nameservers": []})
