"""Pods that say nothing of how far they have loaded their model, as older sidecars do."""

from paceline_operator.pod_loading import PodLoading
from paceline_tuner.service_target import PodTarget


class SilentPods:
    """LoadingClient."""

    async def get_loading(self, pod: PodTarget) -> PodLoading | None:
        """Answer without a stage."""
        assert pod.token == "", "a pod that cannot serve yet needs no token"
        return None
