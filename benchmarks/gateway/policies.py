"""One route for each way of balancing, all on one gateway and over the same two pods."""

from collections.abc import Sequence
from typing import Final

from paceline_api.labels import Manifest
from paceline_testing.gateway_objects import example, on_loopback

SESSION_HEADER: Final = "x-session"
POLICIES: Final[dict[str, Manifest]] = {
    "round robin": {"type": "RoundRobin"},
    "least requests": {"type": "LeastRequest"},
    "hash of the session": {"type": "RoundRobin"},  # and patched below
    "reported utilization": {
        "type": "BackendUtilization",
        # The example's settings, but for a run of half a minute: weights count after one second.
        "backendUtilization": {"blackoutPeriod": "1s", "weightUpdatePeriod": "1s"},
    },
}


def path_of(policy: str) -> str:
    """Return the path in front of the API's own by which the policy's route is chosen."""
    return "/" + policy.replace(" ", "-")


def objects(ports: Sequence[int], port: int) -> list[Manifest]:
    """Return the examples' Gateway on `port`, and by policy a route to the pods at `ports`."""
    (retry,) = (each["spec"]["retry"] for each in example("balance.yaml"))
    routed: list[Manifest] = []
    for policy, balancing in POLICIES.items():
        name = path_of(policy).removeprefix("/")
        routed += [_route(name), _balance(name, balancing, retry)]
    routed.append(_hashed("hash-of-the-session"))
    return on_loopback(routed, {"chat": ports}, port)


def _route(name: str) -> Manifest:
    rewritten = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": f"/{name}"}}],
        "filters": [{"type": "URLRewrite", "urlRewrite": rewritten}],
        "backendRefs": [{"name": "chat", "port": 8000}],
        "timeouts": {"request": "600s"},
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name},
        "spec": {"parentRefs": [{"name": "models"}], "rules": [rule]},
    }


def _balance(name: str, balancing: Manifest, retry: Manifest) -> Manifest:
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name}
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "BackendTrafficPolicy",
        "metadata": {"name": name},
        "spec": {"targetRefs": [target], "loadBalancer": balancing, "retry": retry},
    }


def _hashed(name: str) -> Manifest:
    """Balance the route by a hash of the session, as `ConsistentHash` would.

    In host mode Envoy Gateway 1.9.1 panics on that type (`unsupported type: uint64`), so what it
    makes of it in a cluster is patched into Envoy's configuration.
    """
    balancer = "load_balancing_policies.maglev"
    maglev = {
        "name": f"envoy.{balancer}",
        "typed_config": {"@type": f"type.googleapis.com/envoy.extensions.{balancer}.v3.Maglev"},
    }
    rule = f"httproute/default/{name}/rule/0"
    patches = [
        {
            "type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": rule,
            "operation": {
                "op": "replace",
                "path": "/load_balancing_policy",
                "value": {"policies": [{"typed_extension_config": maglev}]},
            },
        },
        {
            "type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": "default/models/http",
            "operation": {
                "op": "add",
                "jsonPath": f"..routes[?(@.name == '{rule}/match/0/*')]",
                "path": "route/hash_policy",
                "value": [{"header": {"header_name": SESSION_HEADER}}],
            },
        },
    ]
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "EnvoyPatchPolicy",
        "metadata": {"name": name},
        "spec": {
            "type": "JSONPatch",
            "targetRef": {
                "group": "gateway.networking.k8s.io",
                "kind": "Gateway",
                "name": "models",
            },
            "jsonPatches": patches,
        },
    }
