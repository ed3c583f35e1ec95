"""Peers: what replicas that share the shards tell each other over HTTP.

Their Leases say where they are. All derive the same token from the operator's key.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec

from paceline_operator.leader import Leader
from paceline_operator.sharding.messages import Concluded
from paceline_operator.token_key import TokenKey
from paceline_tuner.annotations import Annotation
from paceline_tuner.service_report import ServiceReport

REPORTS_PATH: Final = "/reports"
DECISIONS_PATH: Final = "/decisions"
MAX_REPORTS_BYTES: Final = 256 * 2**20
"""Reports of all services with thousands of pods have some tens of megabytes."""
_CUT_OFF_S: Final = 30.0
"""Longer than a Lease: whoever leads is there by then."""
_EVERY_S: Final = 1.0
_WITHIN_S: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Peers:
    """Tells the leader what was concluded here, and asks the others what they decided."""

    leader: Leader
    owners: Sequence[Leader]
    """Of the shards."""
    key: TokenKey
    clock: Callable[[], float] = time.monotonic
    _waiting: dict[str, Concluded] = field(init=False, default_factory=dict)
    """The newest report of each service that the leader has yet to hear."""
    _failing_since: float | None = field(init=False, default=None)
    """When the leader could first not be told, by `clock`; None where it could the last time."""

    @property
    def num_waiting(self) -> int:
        """How many reports the leader has yet to hear."""
        return len(self._waiting)

    def may_own(self) -> bool:
        """Return whether this replica may own shards: the leader receives its reports."""
        if self.leader.is_leading:
            return True
        since = self._failing_since
        is_cut_off = since is not None and self.clock() - since > _CUT_OFF_S
        return bool(self.leader.address) and not is_cut_off

    def tell(self, uid: str, report: ServiceReport) -> bool:
        """Have the leader told; False where that is this replica."""
        if self.leader.is_leading:
            return False
        self._waiting[report.key] = Concluded(uid, report)
        return True

    async def run(self) -> None:
        """Tell each second what waits, for ever; what cannot be told waits on."""
        async with _session() as session:
            while True:
                await asyncio.sleep(_EVERY_S)
                await self.tell_now(session)

    async def tell_now(self, session: aiohttp.ClientSession) -> None:
        """Tell what waits; where the leader could not be told, try even if nothing waits."""
        if self.leader.is_leading:
            self._waiting.clear()
            self._failing_since = None
        elif (address := self.leader.rival_address) and (self._waiting or self._is_failing):
            await self._tell(session, address)

    async def annotations(self, since_ms: float) -> list[Annotation]:
        """Ask all others what they decided since then, in Unix milliseconds.

        One that does not answer has none.
        """
        addresses = {owner.rival_address for owner in self.owners} - {""}
        async with _session() as session:
            asked = (self._marks(session, address, since_ms) for address in addresses)
            found = await asyncio.gather(*asked)
        return [mark for marks in found for mark in marks]

    async def _tell(self, session: aiohttp.ClientSession, address: str) -> None:
        told, self._waiting = self._waiting, {}
        body = msgspec.msgpack.encode([*told.values()])
        try:
            async with session.post(
                address + REPORTS_PATH, data=body, headers=_bearer(self.key.reports_token())
            ) as answer:
                problem = "" if answer.ok else f"{answer.status} {await answer.text()}".strip()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            problem = repr(error)
        if problem and not self._is_failing:
            _log.warning("the leader at %s cannot be told: %s", address, problem)
        elif self._is_failing and not problem:
            _log.warning("the leader at %s is told again", address)
        if problem:
            self._waiting = told | self._waiting
            self._failing_since = self._failing_since or self.clock()
        else:
            self._failing_since = None

    @property
    def _is_failing(self) -> bool:
        return self._failing_since is not None

    async def _marks(
        self, session: aiohttp.ClientSession, address: str, since_ms: float
    ) -> list[Annotation]:
        query = {"since": f"{since_ms:.0f}", "own": "1"}
        headers = _bearer(self.key.decisions_token())
        try:
            async with session.get(
                address + DECISIONS_PATH, params=query, headers=headers
            ) as answer:
                answer.raise_for_status()
                return msgspec.json.decode(await answer.read(), type=list[Annotation])
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            _log.warning("no decisions from the replica at %s: %r", address, error)
            return []


def read_reports(body: bytes, heard: Callable[[str, ServiceReport], None]) -> None:
    """Hand over the reports that another replica sent. Raises msgspec.MsgspecError."""
    for concluded in msgspec.msgpack.decode(body, type=list[Concluded]):
        heard(concluded.uid, concluded.report)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=_WITHIN_S)
    return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
