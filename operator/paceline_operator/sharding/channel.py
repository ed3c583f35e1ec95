"""Channel: messages over a socket between two processes, each with its length before it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Hashable
from typing import Final, Generic, TypeVar

import msgspec

from paceline_operator.sharding.messages import FromShard, ToShard

Sent = TypeVar("Sent", FromShard, ToShard)
Heard = TypeVar("Heard", FromShard, ToShard)

_LENGTH_BYTES: Final = 4
_MAX_BYTES: Final = 256 * 2**20
"""A longer message would be a bug: the targets of a thousand pods have a few megabytes."""


class Channel(Generic[Sent, Heard]):
    """Sends the newest message of each slot; what waits is bounded by the number of slots."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: "msgspec.msgpack.Decoder[Heard]",
    ) -> None:
        """Speak over an open connection; `open_channel` makes one."""
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.msgpack.Decoder[Heard] = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._waiting: dict[Hashable, Sent] = {}
        self._news = asyncio.Event()

    def put(self, slot: Hashable, message: Sent, *, is_last: bool = False) -> None:
        """Send it when there is time, in the place of what still waits in its slot.

        Or `is_last`, behind all that waits.
        """
        if is_last:
            self._waiting.pop(slot, None)
        self._waiting[slot] = message
        self._news.set()

    def has_waiting(self, slot: Hashable) -> bool:
        """Tell whether what was put there last has yet to be sent."""
        return slot in self._waiting

    async def send(self) -> None:
        """Send what is put, for ever; waits while the other side does not read."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                slot = next(iter(self._waiting))
                body = self._encoder.encode(self._waiting.pop(slot))
                self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
                await self._writer.drain()

    async def messages(self) -> AsyncIterator[Heard]:
        """Give what the other side sends, until it ends.

        Raises msgspec.MsgspecError and ValueError for what is no message.
        """
        while True:
            try:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
                if length > _MAX_BYTES:
                    raise ValueError(
                        f"a message must have at most {_MAX_BYTES} bytes, got {length}"
                    )
                body = await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            yield self._decoder.decode(body)

    def close(self) -> None:
        """Hang up; what waits is not sent."""
        self._writer.close()


async def to_shard(own: socket.socket) -> Channel[ToShard, FromShard]:
    """Open the operator's end."""
    return Channel(*await asyncio.open_connection(sock=own), msgspec.msgpack.Decoder(FromShard))


async def to_operator(own: socket.socket) -> Channel[FromShard, ToShard]:
    """Open the end of the process that tunes."""
    return Channel(*await asyncio.open_connection(sock=own), msgspec.msgpack.Decoder(ToShard))
