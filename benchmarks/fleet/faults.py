"""Faults of fake sidecars: what a pod may answer that it should not."""

import re
from collections.abc import Callable, Mapping
from typing import Final

SILENT: Final = b""
"""No answer at all."""
_TEN_MEGABYTES: Final = 10_000_000


def _long(answer: bytes) -> bytes:
    return b" " * _TEN_MEGABYTES + answer


def _half(answer: bytes) -> bytes:
    return answer[: len(answer) // 2]


def _replaced(name: bytes, value: bytes) -> Callable[[bytes], bytes]:
    pattern = re.compile(b'"' + name + rb'":[-0-9.e+]+')

    def replace(answer: bytes) -> bytes:
        return pattern.sub(b'"' + name + b'":' + value, answer, count=1)

    return replace


def _silent(_: bytes) -> bytes:
    return SILENT


FAULTS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "10 MB": _long,
    "nothing": _silent,
    "half": _half,
    "another pod's": lambda answer: answer,
    "NaN": _replaced(b"q_r", b"NaN"),
    "negative": _replaced(b"running", b"-5"),
    "absurd": _replaced(b"output_tokens", b"1" + b"0" * 30),
    "clock ahead": _replaced(b"now", b"1e12"),
    "clock back": _replaced(b"now", b"1.0"),
}
"""How each fault spoils an honest answer, by its name. A pod that answers as another gives that
one's own answer."""
