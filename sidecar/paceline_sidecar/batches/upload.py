"""A `multipart/form-data` body (RFC 7578): written to the disk as it comes, then read in place."""

import asyncio
import mmap
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import BinaryIO

from starlette.requests import ClientDisconnect, Request

from paceline_sidecar.errors import BodyTooLarge, ClientLeft, InvalidRequest

_PIECE_BYTES = 1024 * 1024
_MAX_PARTS = 16
_MAX_HEAD_BYTES = 8 * 1024
_MAX_FIELD_BYTES = 1024
_MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form, and where its file is."""

    fields: dict[str, str]
    filename: str
    content: slice


async def receive(request: Request, path: Path, *, max_bytes: int) -> None:
    """Write the body to `path`; raises `BodyTooLarge` before more than `max_bytes` are kept."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise BodyTooLarge(max_bytes)
    waiting, size = bytearray(), 0
    with path.open("wb") as data:
        try:
            async for chunk in request.stream():
                waiting += chunk
                size += len(chunk)
                if size > max_bytes:
                    raise BodyTooLarge(max_bytes)
                if len(waiting) >= _PIECE_BYTES:
                    await asyncio.to_thread(data.write, waiting)
                    waiting = bytearray()
        except ClientDisconnect as error:
            raise ClientLeft("The client left while it sent the body.") from error
        await asyncio.to_thread(data.write, waiting)


def read_form(path: Path, content_type: str) -> Form:
    """Find the parts of a form; raises `InvalidRequest`."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary:
        message = "A file is uploaded as multipart/form-data, with a boundary."
        raise InvalidRequest(message, param="file")
    if not path.stat().st_size:
        raise InvalidRequest("The request has no body: a form is expected.", param="file")
    with path.open("rb") as data, mmap.mmap(data.fileno(), 0, access=mmap.ACCESS_READ) as body:
        return _form(body, data, b"--" + boundary.encode("latin-1", "replace"))


def _form(body: mmap.mmap, data: BinaryIO, delimiter: bytes) -> Form:
    fields: dict[str, str] = {}
    filename, content = "", None
    for head, part in _parts(body, delimiter):
        described = HeaderParser().parsestr(head.decode("utf-8", "replace"))
        name = described.get_param("name", "", header="content-disposition")
        if name == "file" and content is None:
            filename, content = described.get_filename("file"), part
            continue
        if part.stop - part.start > _MAX_FIELD_BYTES:
            message = f"{str(name)[:100]}: a field may have {_MAX_FIELD_BYTES} bytes"
            raise InvalidRequest(message, param=str(name)[:100])
        data.seek(part.start)
        fields[str(name)] = data.read(part.stop - part.start).decode("utf-8", "replace")
    if content is None:
        raise InvalidRequest("file: the form has no such part", param="file")
    printable = "".join(letter for letter in filename if letter.isprintable())
    return Form(fields, printable[:_MAX_NAME] or "file", content)


def _parts(body: mmap.mmap, delimiter: bytes) -> list[tuple[bytes, slice]]:
    """Return the head and the place of each part."""
    found: list[tuple[bytes, slice]] = []
    at = body.find(delimiter)
    while at >= 0:
        start = at + len(delimiter)
        if body[start : start + 2] == b"--":
            return found
        end = body.find(b"\r\n" + delimiter, start)
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_HEAD_BYTES)
        if end < 0 or head_end < 0 or head_end > end or len(found) >= _MAX_PARTS:
            break
        found.append((body[start + 2 : head_end + 2], slice(head_end + 4, max(head_end + 4, end))))
        at = end + 2
    message = f"The form is cut off, or has more than {_MAX_PARTS} parts, or too long a head."
    raise InvalidRequest(message, param="file")
