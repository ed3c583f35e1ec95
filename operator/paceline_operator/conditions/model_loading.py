"""ModelAvailable: from the engine's last words and from the pods' readiness."""

import json
from collections.abc import Iterable
from typing import Final

from paceline_api.pod.exit_reasons import REASONS
from paceline_operator.conditions.judgement import Judgement
from paceline_operator.observe import Observed
from paceline_operator.pod_status import PodStatus

TYPE: Final = "ModelAvailable"


def model_available(observed: Observed) -> Judgement:
    """Tell whether the weights are where they are needed."""
    pods = [pod for pod in observed.pods if not pod.is_leaving]
    failures = [*_failures(pods)]
    if failures:
        reason, message = failures[0]
        return Judgement(TYPE, "False", reason, message)
    if any(pod.is_ready for pod in pods):
        return Judgement(TYPE, "True", "Loaded", "the engine has loaded the model")
    if any(pod.engine.is_running for pod in pods):
        if observed.service.spec.model.uri.startswith("hf://"):
            return Judgement(TYPE, "False", "Downloading", "the engine fetches or loads the model")
        return Judgement(TYPE, "False", "Loading", "the engine loads the model")
    return Judgement(TYPE, "Unknown", "NoRunningPod", "no engine runs yet")


def _failures(pods: Iterable[PodStatus]) -> Iterable[tuple[str, str]]:
    """Read `{"reason", "message"}` from engines that left for a reason and are not back."""
    for pod in pods:
        last = pod.engine.last_exit
        if pod.is_ready or last is None or last.exit_code == 0:
            continue
        try:
            words = json.loads(last.message)
            reason, message = str(words["reason"]), str(words["message"])
        except (ValueError, KeyError, TypeError):
            continue  # killed, or it crashed: that is the workload's condition
        if reason in REASONS:
            yield reason, message
