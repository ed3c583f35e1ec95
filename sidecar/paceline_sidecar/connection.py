"""The client's side of a request: its body, bounded, and whether it is still there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from paceline_sidecar.errors import BodyTooLarge, ClientLeft, InvalidRequest

Result = TypeVar("Result")


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the whole body; raises `BodyTooLarge` before more than `max_bytes` are held."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise BodyTooLarge(max_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise BodyTooLarge(max_bytes)
    except ClientDisconnect as error:
        raise ClientLeft("The client left while it sent the body.") from error
    if not body:
        raise InvalidRequest("The request has no body: JSON is expected.")
    return bytes(body)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do `work`; cancel it and raise `ClientLeft` once the client has left."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft("The client closed the connection.")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
