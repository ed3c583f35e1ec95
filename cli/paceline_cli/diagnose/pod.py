"""Reaches the one pod that is diagnosed, and reads its telemetry."""

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_api.tuning_spec import tuning_spec
from paceline_cli.diagnose.diagnosis import Diagnosis, UndiagnosableError, diagnose
from paceline_cli.errors import LocalError
from paceline_cli.explain.service_status import read_service
from paceline_cli.kubectl import KubectlError
from paceline_cli.pod_client import HttpxPodClient
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


def price_in_cluster(name: str, *, namespace: str, kubeconfig: str | None) -> float | None:
    """Read what a service declares of its price; None where it declares none, or is hidden."""
    try:
        resource = read_service(name, namespace=namespace, kubeconfig=kubeconfig)
    except KubectlError:
        return None  # no right to read it: all but the cost can be told
    return tuning_spec(InferenceService.read(resource).spec).price_per_hour


def forwarded_pod(url: str, token_file: Path) -> AbstractAsyncContextManager[PodTarget]:
    """Take a pod whose runtime API the user forwards. Raises DiagnoseError."""
    try:
        token = token_file.read_text().strip()
    except OSError as problem:
        raise DiagnoseError(f"--token-file {token_file}: {problem.strerror}") from problem
    return nullcontext(PodTarget(url, url, token))
