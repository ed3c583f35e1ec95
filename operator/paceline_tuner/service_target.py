"""ServiceTarget: one service to tune, with the pods that are ready."""

from dataclasses import dataclass

from paceline_tuner.service_report import ExperimentReport
from paceline_tuner.service_spec import TuningSpec


@dataclass(frozen=True, slots=True)
class PodTarget:
    """One pod to tune, and how to reach it."""

    name: str
    admin_url: str
    """`http://10.88.0.7:8001`."""
    token: str
    """Bearer token of its runtime API."""
    node: str = ""
    is_canary: bool = False
    """It tries new images."""
    ca_bundle: str = ""
    """Where `admin_url` is `https`: what the pod's certificate is verified by, in PEM."""
    server_name: str = ""
    """The name that the certificate must hold."""

    @property
    def has_tls(self) -> bool:
        """Whether its admin port speaks TLS."""
        return self.admin_url.startswith("https:")


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """One service to tune, with its ready pods."""

    key: str
    """`namespace/name`."""
    spec: TuningSpec
    pods: tuple[PodTarget, ...]
    previous_report: ExperimentReport | None = None
    """The experiment as status has it: an operator that starts anew goes on from here."""
    image_trial: str = ""
    """Names the comparison of the canary's images with the others'; empty where there is none."""
    image_trial_s: float = 900.0
    """After this the canary's images are called no different."""
    start_s: float = 0.0
    """From a pod's creation to its readiness, as its pods took; 0 where that is not known."""
    replicas: int | None = None
    """How many pods are wanted, those that start and are not in `pods` too; None: not known."""
