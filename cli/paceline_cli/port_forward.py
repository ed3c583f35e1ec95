"""Reaches one pod's runtime API: a service of this machine, or a pod of a cluster."""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from paceline_api import labels
from paceline_api.inference_service import InferenceService
from paceline_cli import local_state as state
from paceline_cli.errors import LocalError
from paceline_cli.kubectl import KubectlError, kubectl
from paceline_tuner.service_target import PodTarget

_ADMIN_PORT: Final = 8001
_FORWARDED: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")
_TIMEOUT_S: Final = 30.0


def local_pod(folder: Path, name: str | None) -> PodTarget:
    """The one pod of a running local service. Raises LocalError."""
    found = state.find(folder, name)
    try:
        token = Path(found.token_file).read_text().strip()
    except OSError as problem:
        raise LocalError(f"{found.token_file}: {problem.strerror}") from problem
    return PodTarget(f"{found.name}-0", found.admin_url, token)


@asynccontextmanager
async def cluster_pod(
    name: str, pod: str | None, *, namespace: str, kubeconfig: str | None
) -> AsyncIterator[PodTarget]:
    """Forward a port to one ready pod of a service, with the user's own rights.

    Raises KubectlError: no such pod, or no right to read the token or to forward.
    """
    where = ["--namespace", namespace, *(["--kubeconfig", kubeconfig] if kubeconfig else [])]
    chosen = pod or _first_ready(name, where)
    secret = _json("get", "secret", labels.secret_name(name), *where)
    token = base64.b64decode(secret["data"]["token"]).decode()
    command = ["kubectl", "port-forward", f"pod/{chosen}", f":{_ADMIN_PORT}", *where]
    forward = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        port = await _port(forward)
        yield _target(name, chosen, port, token=token, where=where)
    finally:
        with contextlib.suppress(ProcessLookupError):
            forward.terminate()
        await forward.wait()


def _target(name: str, chosen: str, port: int, *, token: str, where: list[str]) -> PodTarget:
    pod = _json("get", "pod", chosen, *where)
    ports = [each for c in pod["spec"].get("initContainers", ()) for each in c.get("ports", ())]
    if all(each.get("name") != labels.ADMIN_TLS for each in ports):
        return PodTarget(chosen, f"http://127.0.0.1:{port}", token)
    service = InferenceService.read(_json("get", "inferenceservice", name, *where))
    return PodTarget(
        chosen,
        f"https://127.0.0.1:{port}",
        token,
        ca_bundle=service.ca_bundle,
        server_name=service.server_name,
    )


def _first_ready(name: str, where: list[str]) -> str:
    selector = ",".join(f"{key}={value}" for key, value in labels.selector(name).items())
    pods = _json("get", "pods", "--selector", selector, *where)["items"]
    ready = [pod["metadata"]["name"] for pod in pods if _is_ready(pod)]
    if not ready:
        raise KubectlError(f"{name} has no ready pod")
    return str(min(ready))


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _json(*arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(kubectl(*arguments, "-o", "json"))
    return answer


async def _port(forward: asyncio.subprocess.Process) -> int:
    assert forward.stdout is not None  # noqa: S101 - a pipe was asked for
    assert forward.stderr is not None  # noqa: S101 - as above
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            line = await forward.stdout.readline()
    except TimeoutError as problem:
        raise KubectlError(f"kubectl forwarded no port within {_TIMEOUT_S:.0f} s") from problem
    match = _FORWARDED.match(line)
    if match is None:
        raise KubectlError((await forward.stderr.read()).decode(errors="replace").strip())
    return int(match[1])
