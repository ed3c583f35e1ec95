"""Leadership by a coordination.k8s.io Lease: one replica writes, the others stand by."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from paceline_api.labels import Manifest
from paceline_operator.errors import ApiError, ConflictError, NotLeadingError
from paceline_operator.kubernetes_api import WRITE_TIMEOUT_S, KubernetesApi

LEASE_S: Final = 15
RENEW_DEADLINE_S: Final = 10.0
"""With the longest write less than LEASE_S: none that began in time ends too late."""
RETRY_S: Final = 2.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Leader:
    """Takes and renews the Lease; `check` is the fence in front of every write."""

    cluster: KubernetesApi
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    """Monotonic seconds: whether our own renewal is fresh, and how long another's has stood."""
    _renewed_at: float | None = field(init=False, default=None)
    _rival: tuple[str, str] = field(init=False, default=("", ""))
    """Holder and renewal time last seen, in the rival's own words."""
    _rival_seen_at: float = field(init=False, default=0.0)
    leading_since: float = field(init=False, default=0.0)
    """When the last term began, by `clock`."""
    _changed: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    @property
    def is_leading(self) -> bool:
        """Whether the last renewal still holds."""
        return self.clock() < self.leads_until

    @property
    def leads_until(self) -> float:
        """When the last renewal ceases to hold, by `clock`; a past moment while it stands by."""
        return -math.inf if self._renewed_at is None else self._renewed_at + RENEW_DEADLINE_S

    @property
    def leading_for_s(self) -> float:
        """How long this replica has led without a break; 0 while it stands by."""
        return self.clock() - self.leading_since if self.is_leading else 0.0

    def check(self) -> None:
        """Stop a write that another leader might already be doing."""
        if not self.is_leading:
            raise NotLeadingError(f"{self.identity} does not hold Lease {self.name}")

    async def lead(self) -> None:
        """Return once this replica leads."""
        while not self.is_leading:
            self._changed.clear()
            await self._changed.wait()

    async def run(self, may_lead: Callable[[], bool]) -> None:
        """Take or renew the Lease for ever; give it back while this replica may not lead."""
        while True:
            if may_lead():
                await self.try_once()
            elif self.is_leading:
                await self._give_up()
            await asyncio.sleep(RETRY_S)

    async def _give_up(self) -> None:
        _log.warning("%s may not lead any more", self.identity)
        try:
            await self.release()
        except ApiError as problem:
            _log.warning("Lease %s runs out by itself: %s", self.name, problem)

    async def try_once(self) -> None:
        """Take the Lease if it is free or stale, renew it if it is ours."""
        # Taken before the request: an answer that comes late must not prolong the leadership.
        started = self.clock()
        was_leading = self.is_leading
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                is_ours = await self._take()
        except ConflictError:
            is_ours = False
        except TimeoutError:
            _log.warning("Lease %s could not be renewed in %.0f s", self.name, WRITE_TIMEOUT_S)
            return
        except ApiError as problem:
            _log.warning("Lease %s could not be renewed: %s", self.name, problem)
            return
        self._renewed_at = started if is_ours else None
        self._changed.set()
        if self.is_leading != was_leading:
            self.leading_since = started
            _log.info("%s %s", self.identity, "leads" if self.is_leading else "stands by")

    async def release(self) -> None:
        """Give the Lease back, so that a successor need not wait for its end."""
        if not self.is_leading:
            return
        self._renewed_at = None
        lease = await self.cluster.get("Lease", self.namespace, self.name)
        if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self.cluster.replace(lease)

    async def _take(self) -> bool:
        lease = await self.cluster.get("Lease", self.namespace, self.name)
        if lease is None:
            await self.cluster.create(self._lease({}))
            return True
        spec = lease["spec"]
        if spec.get("holderIdentity") != self.identity and not self._is_stale(spec):
            return False
        await self.cluster.replace(lease | {"spec": self._lease(spec)["spec"]})
        return True

    def _is_stale(self, spec: Manifest) -> bool:
        """Judge by our own clock since we saw it renewed: the rival's clock may be wrong."""
        if not spec.get("holderIdentity"):
            return True
        seen = (spec["holderIdentity"], str(spec.get("renewTime")))
        if seen != self._rival:
            self._rival, self._rival_seen_at = seen, self.clock()
        return self.clock() - self._rival_seen_at > float(spec.get("leaseDurationSeconds", LEASE_S))

    def _lease(self, old: Manifest) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_new_holder = old.get("holderIdentity") != self.identity
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_S,
                "renewTime": now,
                "acquireTime": now if is_new_holder else old.get("acquireTime", now),
                "leaseTransitions": old.get("leaseTransitions", 0)
                + (1 if is_new_holder and old else 0),
            },
        }
