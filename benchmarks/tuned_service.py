"""Services of manifests under the tuning loop: each is a `paceline up` of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from paceline_api.labels import Manifest
from paceline_testing.ending import end
from paceline_testing.free_port import free_port
from paceline_testing.waiting import wait_until

_MET = re.compile(r'^paceline_sla_requests_total\{.*result="(\w+)".*\} (\S+)$', re.MULTILINE)


@contextmanager
def tuned_service(manifest: Path, state: Path) -> Iterator[str]:
    """Run `paceline up`; its tuner finds nothing but what is in the folder `state`."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = ["up", "-f", str(manifest), "--no-page", "--port", str(port)]
    up = subprocess.Popen(
        [sys.executable, "-m", "paceline_cli", *command],
        env=os.environ | {"XDG_STATE_HOME": str(state)},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: up.poll() is not None or is_ready(url), within_s=300)
        if up.poll() is not None:
            raise RuntimeError(f"{manifest}: paceline up ended with {up.returncode}")
        yield url
    finally:
        end(up)


def is_ready(url: str) -> bool:
    """Whether a service takes requests."""
    try:
        return httpx.get(f"{url}/health/ready").is_success
    except httpx.TransportError:
        return False


def alone(service: Manifest, folder: Path) -> Path:
    """Write a service of a file of several into one of its own, as `paceline up` wants it."""
    path = folder / f"{service['metadata']['name']}.yaml"
    path.write_text(yaml.safe_dump(service))
    return path


def sla_requests(url: str) -> dict[str, float]:
    """Return how many requests a service has counted as `met` and as `missed`."""
    found = {"met": 0.0, "missed": 0.0}
    for result, count in _MET.findall(httpx.get(f"{url}/metrics", timeout=30).text):
        found[result] += float(count)
    return found
