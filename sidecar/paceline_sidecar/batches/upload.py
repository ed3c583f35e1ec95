"""An upload, as `multipart/form-data`: its file goes to the disk as it comes."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from paceline_sidecar.errors import BodyTooLarge, ClientLeft, InvalidRequest

_PIECE_BYTES = 1024 * 1024
_MAX_PARTS = 16
_MAX_FIELD_BYTES = 1024
_MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form, and the name of its file."""

    fields: dict[str, str]
    filename: str


async def receive_form(request: Request, path: Path, *, max_bytes: int) -> Form:
    """Write the file of a form to `path`.

    Raises:
        BodyTooLarge: The body has more than `max_bytes`.
        InvalidRequest: It is no form, a form without a file, or one of too many or too long parts.
        ClientLeft: It did not come to its end.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise BodyTooLarge(max_bytes)
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        message = "A file is uploaded as multipart/form-data, with a boundary."
        raise InvalidRequest(message, param="file")
    with path.open("wb") as data:
        return await _read(request, _FormReader(boundary, data), max_bytes)


async def _read(request: Request, reader: "_FormReader", max_bytes: int) -> Form:
    waiting, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            waiting += chunk
            size += len(chunk)
            if size > max_bytes:
                raise BodyTooLarge(max_bytes)
            if len(waiting) >= _PIECE_BYTES:
                await asyncio.to_thread(reader.write, bytes(waiting))
                waiting = bytearray()
    except ClientDisconnect as error:
        raise ClientLeft("The client left while it sent the body.") from error
    await asyncio.to_thread(reader.write, bytes(waiting))
    return reader.finish()


class _FormReader:
    """Keeps the fields, and writes the first part called `file` to the disk."""

    def __init__(self, boundary: bytes, data: BinaryIO) -> None:
        self._data = data
        self._fields: dict[str, str] = {}
        self._filename: str | None = None
        self._num_parts = 0
        self._is_over = False
        self._header, self._value = b"", b""
        self._name: str | None = None
        """The part that is read; None for the file."""
        self._field = b""
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._read_header,
                    "on_header_value": self._read_value,
                    "on_header_end": self._end_header,
                    "on_part_data": self._read_part,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _unreadable(error) from error

    def write(self, data: bytes) -> None:
        """Take the next bytes; raises `InvalidRequest`."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _unreadable(error) from error

    def finish(self) -> Form:
        """Return the form; raises `InvalidRequest` where it is cut off or has no file."""
        if not self._is_over:
            raise InvalidRequest("file: the form is cut off", param="file")
        if self._filename is None:
            raise InvalidRequest("file: the form has no such part", param="file")
        return Form(self._fields, self._filename)

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            message = f"file: the form has more than {_MAX_PARTS} parts"
            raise InvalidRequest(message, param="file")
        self._name, self._field = "", b""

    def _read_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _read_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        header, value = self._header.lower(), self._value
        self._header = self._value = b""
        if header != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == "file" and self._filename is None:
            self._name = None
            given = options.get(b"filename", b"").decode("utf-8", "replace")
            printable = "".join(letter for letter in given if letter.isprintable())
            self._filename = printable[:_MAX_NAME] or "file"

    def _read_part(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            self._data.write(memoryview(data)[start:end])
            return
        self._field += data[start:end]
        if len(self._field) > _MAX_FIELD_BYTES:
            shown = self._name[:100]
            message = f"{shown}: a field may have {_MAX_FIELD_BYTES} bytes"
            raise InvalidRequest(message, param=shown)

    def _end_part(self) -> None:
        if self._name is not None:
            self._fields[self._name] = self._field.decode("utf-8", "replace")

    def _end(self) -> None:
        self._is_over = True


def _unreadable(error: FormParserError) -> InvalidRequest:
    return InvalidRequest(f"file: the form cannot be read: {error}", param="file")
