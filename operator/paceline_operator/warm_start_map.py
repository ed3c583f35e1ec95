"""The tuner's warm start, kept in a ConfigMap of the operator's own namespace."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from paceline_api.labels import Manifest
from paceline_operator.errors import OperatorError
from paceline_operator.kubernetes_api import KubernetesApi
from paceline_tuner.warm_start import WarmStart
from paceline_tuner.warm_start_json import decode, encode
from paceline_tuner.warm_start_store import StoreError

NAME: Final = "paceline-memory"
FILE: Final = "memory.json"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ConfigMapStore:
    """WarmStartStore on a cluster. Whatever the ConfigMap holds, reading it ends well."""

    cluster: KubernetesApi
    namespace: str
    check_leadership: Callable[[], None]
    """Raises NotLeadingError before a write that another leader might be doing."""
    _version: str | None = field(init=False, default=None)
    """What was read; a save over anything newer is refused, and may be tried after a load."""

    async def load(self) -> WarmStart:
        """Read the warm start; a broken entry is left out, and the log says so."""
        try:
            found = await self.cluster.get("ConfigMap", self.namespace, NAME)
        except OperatorError as problem:
            raise StoreError(str(problem)) from problem
        self._version = found["metadata"]["resourceVersion"] if found else None
        text = ((found or {}).get("data") or {}).get(FILE)
        if not text:
            return WarmStart()
        warm_start, problems = decode(text)
        for problem_text in problems:
            _log.warning("ConfigMap %s/%s: %s", self.namespace, NAME, problem_text)
        return warm_start

    async def save(self, warm_start: WarmStart) -> None:
        """Write the warm start by server-side apply."""
        try:
            self.check_leadership()
            saved = await self.cluster.apply(self._manifest(warm_start))
        except OperatorError as problem:
            raise StoreError(str(problem)) from problem
        self._version = saved["metadata"]["resourceVersion"]

    def _manifest(self, warm_start: WarmStart) -> Manifest:
        version = {"resourceVersion": self._version} if self._version else {}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": NAME,
                "namespace": self.namespace,
                **version,
                # Not labelled as a service's child: a change of it concerns no service.
                "labels": {
                    "app.kubernetes.io/part-of": "paceline",
                    "app.kubernetes.io/component": "memory",
                },
            },
            "data": {FILE: encode(warm_start)},
        }
