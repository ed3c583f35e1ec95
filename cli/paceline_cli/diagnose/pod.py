"""Reaches the pods that are diagnosed, and reads their telemetry."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_api.tuning_spec import tuning_spec
from paceline_cli import local_state
from paceline_cli.diagnose.diagnosis import Diagnosis, UndiagnosableError, diagnose
from paceline_cli.errors import LocalError
from paceline_cli.explain.service_status import read_service
from paceline_cli.kubectl import KubectlError
from paceline_cli.place import state_dir
from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.port_forward import cluster_pod, local_pod
from paceline_tuner.pods import PodError
from paceline_tuner.service_target import PodTarget

_TIMEOUT_S: Final = 20.0


class DiagnoseError(LocalError):
    """The pod could not be asked, or has nothing to judge by."""


async def diagnose_pod(
    reached: AbstractAsyncContextManager[PodTarget],
    seconds: float,
    price_per_hour: float | None = None,
) -> tuple[str, Diagnosis]:
    """Return the pod's name and what its last `seconds` show. Raises DiagnoseError."""
    async with reached as pod, HttpxPodClient(timeout_s=_TIMEOUT_S) as pods:
        try:
            telemetry = await pods.get_telemetry(pod, 0)
            return pod.name, diagnose(telemetry, window_s=seconds, price_per_hour=price_per_hour)
        except PodError as problem:
            raise DiagnoseError(str(problem)) from problem
        except UndiagnosableError as problem:
            raise DiagnoseError(f"{pod.name} cannot be diagnosed: {problem}") from problem


async def diagnose_services(
    reached: Mapping[str, AbstractAsyncContextManager[PodTarget]], seconds: float
) -> dict[str, Diagnosis]:
    """Diagnose one pod of each service at the same time, by name. Raises DiagnoseError."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            name: group.create_task(diagnose_pod(each, seconds)) for name, each in reached.items()
        }
    return {name: task.result()[1] for name, task in tasks.items()}


def reached(
    names: Sequence[str],
    pod: str | None,
    *,
    forwarded: Mapping[str, Path],
    namespace: str | None,
    kubeconfig: str | None,
) -> dict[str, AbstractAsyncContextManager[PodTarget]]:
    """Return how to reach one pod of each service, by its name or its address.

    Addresses that the user forwards come with their token files. Without a name, it is the only
    service of this machine. Raises LocalError.
    """
    if forwarded:
        return {url: _forwarded_pod(url, token_file) for url, token_file in forwarded.items()}
    if namespace or kubeconfig:
        where = namespace or "default"
        return {
            name: cluster_pod(name, pod, namespace=where, kubeconfig=kubeconfig) for name in names
        }
    found = [local_state.find(state_dir(), name).name for name in names or (None,)]
    return {name: nullcontext(local_pod(state_dir(), name)) for name in found}


def declared_price(name: str, *, namespace: str | None, kubeconfig: str | None) -> float | None:
    """Read what a service declares of its price; None where it declares none, or is hidden."""
    if not (namespace or kubeconfig):
        return local_state.find(state_dir(), name).price_per_hour
    try:
        resource = read_service(name, namespace=namespace or "default", kubeconfig=kubeconfig)
    except KubectlError:
        return None  # no right to read it: all but the cost can be told
    return tuning_spec(InferenceService.read(resource).spec).price_per_hour


def _forwarded_pod(url: str, token_file: Path) -> AbstractAsyncContextManager[PodTarget]:
    try:
        token = token_file.read_text().strip()
    except OSError as problem:
        raise DiagnoseError(f"--token-file {token_file}: {problem.strerror}") from problem
    return nullcontext(PodTarget(url, url, token))
