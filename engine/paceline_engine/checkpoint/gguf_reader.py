"""Reads a GGUF file that may be anything: what it says of itself is checked before it is believed.

gguf's own reader takes counts at their word. Behind the file's end it finds values that have no
bytes, as many as a count asks for: an array of 2^62 of them takes all memory there is.
"""

from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, ReaderField

from paceline_engine.errors import CorruptModel

_MAX_VALUES: Final = 2_000_000
"""Of all metadata, at some 300 bytes each: 262,144 tokens with scores and types have 800,000."""
_MAX_NAMES: Final = 65_536
"""Keys, and tensors: a model of a hundred layers has a thousand."""
_MAX_DEPTH: Final = 2
"""A value in a list; no model has lists of lists."""
_MAX_DIMS: Final = 4


class GuardedReader(GGUFReader):  # type: ignore[misc]  # gguf carries no annotations
    """A file's metadata and tensors. Raises CorruptModel, which names the file and the field.

    It slices a plain array: a vocabulary is a hundred thousand slices, each slow by `np.memmap`.
    With 49,000 tokens opening a file takes 0.9 s in place of 2.5.
    """

    def __init__(self, path: Path) -> None:
        self._last_text: Any = b""
        self._field = "the header"
        self._depth = self._num_values = 0
        try:
            super().__init__(path)
        except (ArithmeticError, LookupError, TypeError, ValueError, OSError) as error:
            raise CorruptModel(
                f"{path} ({path.stat().st_size:,} bytes) is no whole GGUF file: "
                f"{self._field}: {error}"
            ) from error

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """Return the mapped file."""
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray[Any, Any]) -> None:
        self._data = mapped.view(np.ndarray)

    def _get(
        self, offset: int, dtype: Any, count: int = 1, override_order: Any = None
    ) -> np.ndarray[Any, Any]:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self._data):
            raise ValueError(f"it would end at byte {end:,}")
        found: np.ndarray[Any, Any] = super()._get(offset, dtype, count, override_order)
        return found

    def _get_str(self, offset: int) -> tuple[Any, Any]:
        length, text = super()._get_str(offset)
        self._last_text = text
        return length, text

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if self._depth == 0:  # a key was read last
            self._field = f"metadata {_text(self._last_text)!r}"
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES:,} values")
        if self._depth == _MAX_DEPTH:
            raise ValueError("a list of lists")
        self._depth += 1
        parts = super()._get_field_parts(orig_offs, raw_type)
        self._depth -= 1
        return parts

    def _build_fields(self, offs: int, count: int) -> int:
        self._field = "the count of metadata"
        _require_few(count)
        end: int = super()._build_fields(offs, count)
        return end

    def _build_tensor_info(self, offs: int, count: int) -> tuple[int, list[ReaderField]]:
        self._field = "the list of tensors"
        _require_few(count)
        found: tuple[int, list[ReaderField]] = super()._build_tensor_info(offs, count)
        return found

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        for field in fields:
            _, name, _, sizes, kind, offset = field.parts
            self._field = f"tensor {_text(name)!r}"
            end = int(start_offs) + int(offset[0]) + _num_bytes(sizes.tolist(), int(kind[0]))
            if end > len(self._data):
                raise ValueError(f"it would end at byte {end:,}")
        self._field = "the tensors"
        super()._build_tensors(start_offs, fields)


def _require_few(count: int) -> None:
    if count > _MAX_NAMES:
        raise ValueError(f"{count:,} are more than {_MAX_NAMES:,}")


def _num_bytes(sizes: list[int], kind: int) -> int:
    if not 1 <= len(sizes) <= _MAX_DIMS or min(sizes) < 1:
        raise ValueError(f"it has the shape {sizes[:_MAX_DIMS]}")
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    if sizes[0] % block:
        raise ValueError(f"rows of {sizes[0]} values are no whole blocks of {block}")
    return int(prod(sizes) // block * block_bytes)


def _text(found: Any) -> str:
    return bytes(found[:80]).decode(errors="replace")
