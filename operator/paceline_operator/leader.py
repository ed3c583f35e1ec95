"""Leadership by a coordination.k8s.io Lease: one replica acts, the others stand by.

One Lease is for who writes to the cluster; where the tuner has several shards, each has its own.
"""

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
"""Plus the longest write, this is less than LEASE_S: a write ends before the Lease does."""
RETRY_S: Final = 2.0
ADDRESS: Final = "serving.paceline.dev/address"
"""Annotation: where other replicas reach the holder."""
WANTED_BY: Final = "serving.paceline.dev/wanted-by"
"""Annotation: who asks the holder for the Lease."""
_NOT_FOUND: Final = 404

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Rival:
    """Another holder of the Lease, as its Lease describes it."""

    identity: str = ""
    renewed: str = ""
    address: str = ""


@dataclass(slots=True)
class Leader:
    """Takes and renews the Lease; `check` is the fence in front of every write."""

    cluster: KubernetesApi
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    """Monotonic seconds: our last renewal and the age of a rival's are measured by it."""
    address: str = ""
    """The URL at which other replicas reach this one; empty where they cannot."""
    leading_since: float = field(init=False, default=0.0)
    """When the last term began, by `clock`."""
    asked_by: str = field(init=False, default="")
    """Who has asked for the Lease since the last renewal."""
    _renewed_at: float | None = field(init=False, default=None)
    _held: Manifest | None = field(init=False, default=None)
    """The Lease as we wrote it last; renewed without being read as long as nobody else writes."""
    _rival: _Rival = field(init=False, default_factory=_Rival)
    _rival_seen_at: float = field(init=False, default=0.0)
    _rival_lasts_s: float = field(init=False, default=LEASE_S)
    _heir: str | None = field(init=False, default=None)
    """Who gets the Lease at `_leaves_at`; an empty name lets any replica take it."""
    _leaves_at: float = field(init=False, default=-math.inf)
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

    @property
    def is_leaving(self) -> bool:
        """Whether it has left, and the Lease is still to be given away."""
        return self._heir is not None

    @property
    def holder(self) -> str:
        """Who holds the Lease, as far as is known, or is about to; empty where nobody does."""
        if self._heir is not None:
            return self._heir
        if self.is_leading:
            return self.identity
        return self._rival.identity if self._is_rival_fresh else ""

    @property
    def rival_address(self) -> str:
        """The URL of the other replica that holds the Lease; empty where no other does."""
        return self._rival.address if not self.is_leading and self._is_rival_fresh else ""

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
            await self.look(may_lead=may_lead())
            await asyncio.sleep(RETRY_S)

    async def look(self, *, may_lead: bool) -> None:
        """Do what is due: take or renew the Lease, leave it, or give it back."""
        if self._heir is not None:
            await self._leave(self._heir)
        elif may_lead:
            await self.try_once()
        elif self.is_leading:
            _log.warning("%s may not hold Lease %s any more", self.identity, self.name)
            self.leave_to("")

    async def try_once(self) -> None:
        """Take the Lease if it is free or stale, renew it if it is ours."""
        # Taken before the request: an answer that comes late must not prolong the leadership.
        started = self.clock()
        was_leading = self.is_leading
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                is_ours = await self._take()
        except ConflictError:
            return  # somebody wrote just now, an asker perhaps: the next look shows who
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
            verb = "holds" if self.is_leading else "has lost"
            _log.info("%s %s Lease %s", self.identity, verb, self.name)

    def leave_to(self, heir: str) -> None:
        """Lead no more, and give the Lease to `heir` when nothing that was lent can be in use.

        An empty name lets the first take it that comes.
        """
        self._leaves_at = self.leads_until
        self._renewed_at, self._heir, self.asked_by = None, heir, ""

    async def ask(self) -> None:
        """Ask its holder for the Lease; whether it is given is for the holder to say."""
        try:
            lease = await self.cluster.get("Lease", self.namespace, self.name)
            if lease is not None and lease["spec"].get("holderIdentity") == self._rival.identity:
                notes = lease["metadata"].get("annotations") or {}
                lease["metadata"]["annotations"] = notes | {WANTED_BY: self.identity}
                await self.cluster.replace(lease)
        except ApiError as problem:
            _log.debug("Lease %s could not be asked for: %s", self.name, problem)

    async def release(self) -> None:
        """Give the Lease back at once, so that a successor need not wait for its end.

        For when nothing that was lent is in use: the tuner has ended.
        """
        if not self.is_leading and self._heir is None:
            return
        self._renewed_at = None
        await self._give("")

    async def _leave(self, heir: str) -> None:
        if self.clock() >= self._leaves_at:
            await self._give(heir)

    async def _give(self, heir: str) -> None:
        self._heir, self._held = None, None
        try:
            await self._name(heir)
        except ApiError as problem:
            _log.warning("Lease %s runs out by itself: %s", self.name, problem)

    async def _name(self, heir: str) -> None:
        lease = await self.cluster.get("Lease", self.namespace, self.name)
        if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
            lease["spec"] |= {
                "holderIdentity": heir,
                "leaseDurationSeconds": LEASE_S if heir else 1,
                "renewTime": _now(),
            }
            lease["metadata"]["annotations"] = _others(lease["metadata"])
            await self.cluster.replace(lease)

    async def _take(self) -> bool:
        if self._held is not None and await self._renew(self._held):
            return True
        lease = await self.cluster.get("Lease", self.namespace, self.name)
        if lease is None:
            self._held = await self.cluster.create(self._lease({}, {}))
            return True
        spec, metadata = lease["spec"], lease["metadata"]
        notes = metadata.get("annotations") or {}
        if spec.get("holderIdentity") == self.identity:
            self.asked_by = notes.get(WANTED_BY, "")
        elif not self._is_stale(spec, notes):
            return False
        self._held = await self.cluster.replace(self._lease(spec, metadata))
        return True

    async def _renew(self, held: Manifest) -> bool:
        """Renew what we wrote last; whether it was still so."""
        self._held = None
        try:
            self._held = await self.cluster.replace(self._lease(held["spec"], held["metadata"]))
        except ApiError as problem:
            if isinstance(problem, ConflictError) or problem.code == _NOT_FOUND:
                return False
            raise
        return True

    @property
    def _is_rival_fresh(self) -> bool:
        """Judge by our own clock since we saw it renewed: the rival's clock may be wrong."""
        age_s = self.clock() - self._rival_seen_at
        return bool(self._rival.identity) and age_s <= self._rival_lasts_s

    def _is_stale(self, spec: Manifest, notes: Manifest) -> bool:
        identity = spec.get("holderIdentity") or ""
        seen = _Rival(identity, str(spec.get("renewTime")), notes.get(ADDRESS, ""))
        if seen != self._rival:
            self._rival, self._rival_seen_at = seen, self.clock()
        self._rival_lasts_s = float(spec.get("leaseDurationSeconds", LEASE_S))
        return not self._is_rival_fresh

    def _lease(self, old: Manifest, metadata: Manifest) -> Manifest:
        now = _now()
        is_new_holder = old.get("holderIdentity") != self.identity
        notes = {ADDRESS: self.address} if self.address else {}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                **metadata,
                "name": self.name,
                "namespace": self.namespace,
                "annotations": _others(metadata) | notes,
            },
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_S,
                "renewTime": now,
                "acquireTime": now if is_new_holder else old.get("acquireTime", now),
                "leaseTransitions": old.get("leaseTransitions", 0)
                + (1 if is_new_holder and old else 0),
            },
        }


def _others(metadata: Manifest) -> dict[str, str]:
    """Give the annotations that are not ours to write."""
    notes = metadata.get("annotations") or {}
    return {name: text for name, text in notes.items() if name not in {ADDRESS, WANTED_BY}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
