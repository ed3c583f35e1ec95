"""The objects of `examples/gateway` as Envoy Gateway takes them without a cluster.

Only addresses change: the Gateway's port, and in the place of a Service the addresses of its pods,
which Envoy Gateway would have read from the cluster.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from paceline_api.labels import Manifest

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "gateway"
_GROUP: Final = "gateway.envoyproxy.io"

Ports = Mapping[str, Sequence[int]]
"""The loopback ports of each service's pods, by the service's name."""


def example(name: str) -> list[Manifest]:
    """Return the objects of one file."""
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def on_loopback(objects: Sequence[Manifest], services: Ports, port: int) -> list[Manifest]:
    """Return the objects with these pods behind the examples' Gateway, which listens on `port`."""
    (gateway,) = (each for each in example("gateway.yaml") if each["kind"] == "Gateway")
    changed = [_moved(each, services, port) for each in (gateway, *objects)]
    return [*changed, *(_backend(f"service-{name}", services[name]) for name in services)]


def _moved(found: Manifest, services: Ports, port: int) -> Manifest:
    moved = copy.deepcopy(found)
    moved["metadata"].setdefault("namespace", "default")
    match moved["kind"]:
        case "Gateway":
            (listener,) = moved["spec"]["listeners"]
            listener["port"] = port
        case "HTTPRoute":
            for reference in _references(moved):
                if reference.get("kind", "Service") == "Service":
                    del reference["port"]
                    service = f"service-{reference['name']}"
                    reference.update(group=_GROUP, kind="Backend", name=service)
        case "Backend":
            (endpoint,) = moved["spec"]["endpoints"]
            service = endpoint["fqdn"]["hostname"].split(".")[0]
            moved["spec"]["endpoints"] = _endpoints(services[service])
    return moved


def _references(route: Manifest) -> Iterator[dict[str, Any]]:
    for rule in route["spec"]["rules"]:
        yield from rule["backendRefs"]


def _backend(name: str, ports: Sequence[int]) -> Manifest:
    return {
        "apiVersion": f"{_GROUP}/v1alpha1",
        "kind": "Backend",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"endpoints": _endpoints(ports)},
    }


def _endpoints(ports: Sequence[int]) -> list[Manifest]:
    return [{"ip": {"address": "127.0.0.1", "port": port}} for port in ports]
