"""The header of a GGUF file: metadata, names and kinds of tensors, without the weights.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Little-endian; strings and
arrays carry their length as 64 bits. The engine reads whole files with the gguf package, which
the operator's side does not have.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from paceline_engine.checkpoint.stored_weights import StoredTensor

Value = int | float | bool | str | range

_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9
_VERSIONS: Final = (2, 3)
_KINDS: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 30: "BF16",
}  # fmt: skip
_MOST_DIMENSIONS: Final = 4
_MOST_BYTES: Final = 1 << 30
"""The longest string: a broken length must not fill the memory."""


class GgufError(ValueError):
    """The file has no whole GGUF header."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself."""

    metadata: dict[str, Value]
    """Scalars and strings as they are; an array as a range of its length."""
    tensors: tuple[StoredTensor, ...]

    def get(self, key: str, default: Value | None = None, /) -> Any:
        """Return the value of `key`, or `default`."""
        return self.metadata.get(key, default)

    def __getitem__(self, key: str, /) -> Any:
        """Return what must be there. Raises GgufError."""
        if key not in self.metadata:
            raise GgufError(f"its header lacks {key}")
        return self.metadata[key]


def read_header(path: Path) -> GgufHeader:
    """Read the header. Raises GgufError, OSError."""
    with path.open("rb") as file:
        try:
            return _header(file)
        except (struct.error, UnicodeDecodeError) as problem:
            raise GgufError(f"{path} is no whole GGUF file: {problem}") from problem
        except GgufError as problem:
            raise GgufError(f"{path} is no whole GGUF file: {problem}") from problem


def _header(file: BinaryIO) -> GgufHeader:
    magic = file.read(4)
    if magic != b"GGUF":
        raise GgufError(f"it begins with {magic!r}")
    version = _unpack(file, "<I")
    if version not in _VERSIONS:
        raise GgufError(f"its version is {version}, known are {_VERSIONS}")
    num_tensors, num_fields = int(_unpack(file, "<Q")), int(_unpack(file, "<Q"))
    metadata = {}
    for _ in range(num_fields):
        key = _string(file)
        metadata[key] = _value(file, int(_unpack(file, "<I")))
    return GgufHeader(metadata, tuple(_tensor(file) for _ in range(num_tensors)))


def _value(file: BinaryIO, kind: int) -> Value:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        inner, length = int(_unpack(file, "<I")), int(_unpack(file, "<Q"))
        if inner in _SCALARS:
            file.seek(length * struct.calcsize(_SCALARS[inner]), 1)
        else:
            for _ in range(length):
                _value(file, inner)
        return range(length)
    if kind not in _SCALARS:
        raise GgufError(f"a value is of the unknown type {kind}")
    return _unpack(file, _SCALARS[kind])


def _tensor(file: BinaryIO) -> StoredTensor:
    name = _string(file)
    dimensions = int(_unpack(file, "<I"))
    if dimensions > _MOST_DIMENSIONS:
        raise GgufError(f"the tensor {name} has {dimensions} dimensions")
    sizes = [int(_unpack(file, "<Q")) for _ in range(dimensions)]
    number = int(_unpack(file, "<I"))
    file.seek(8, 1)  # where its weights begin
    return StoredTensor(name, _KINDS.get(number, f"number {number}"), tuple(reversed(sizes)))


def _string(file: BinaryIO) -> str:
    length = int(_unpack(file, "<Q"))
    if length > _MOST_BYTES:
        raise GgufError(f"a string is {length:,} bytes long")
    content = file.read(length)
    if len(content) < length:
        raise GgufError("it ends within a string")
    return content.decode()


def _unpack(file: BinaryIO, layout: str) -> float:
    (value,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
    number: float = value
    return number
