"""The Leases of the tuner's shards: this replica holds its share of them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline_operator.errors import NotLeadingError
from paceline_operator.leader import RETRY_S, Leader
from paceline_operator.sharding.shares import may_give, to_ask_for


@dataclass(slots=True)
class ShardLeases:
    """Takes every Lease that is free, and asks for others until all replicas have as many."""

    leases: Sequence[Leader]
    """One for each shard."""
    identity: str
    _num_looks: int = field(init=False, default=0)

    async def run(self, may_own: Callable[[], bool]) -> None:
        """Hold a share for ever; give it back while this replica may own nothing."""
        while True:
            await self.look(may_own=may_own())
            await asyncio.sleep(RETRY_S)

    async def look(self, *, may_own: bool) -> None:
        """Renew what is ours, look at half of the others, and come nearer to a fair share."""
        due = [lease for number, lease in enumerate(self.leases) if self._is_due(number, lease)]
        await asyncio.gather(*(lease.look(may_lead=may_own) for lease in due))
        self._num_looks += 1
        if may_own:
            self._give()
            await self._ask()

    def check(self) -> None:
        """Stop a write of who owns no shard."""
        if not any(lease.is_leading for lease in self.leases):
            raise NotLeadingError(f"{self.identity} owns no shard")

    async def release(self) -> None:
        """Give all back at once, when nothing is tuned any more."""
        await asyncio.gather(*(lease.release() for lease in self.leases))

    def _is_due(self, number: int, lease: Leader) -> bool:
        is_ours = lease.holder == self.identity or not self._num_looks
        return is_ours or lease.is_leaving or number % 2 == self._num_looks % 2

    def _give(self) -> None:
        for lease in self.leases:
            asker, lease.asked_by = lease.asked_by, ""
            if asker and lease.is_leading and may_give(self._holders(), self.identity, asker):
                lease.leave_to(asker)

    async def _ask(self) -> None:
        number = to_ask_for(self._holders(), self.identity)
        if number is not None:
            await self.leases[number].ask()

    def _holders(self) -> list[str]:
        return [lease.holder for lease in self.leases]
