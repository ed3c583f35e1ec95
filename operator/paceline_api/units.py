"""Names, durations, fractions and quantities as a manifest writes them, and as numbers."""

import math
import re
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import Field, WithJsonSchema

_DURATION: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h)")
_UNIT_MS: Final = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "h": 3_600_000.0}
_QUANTITY: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>|m|[kMGTP]|[KMGTP]i)")
_DECIMAL: Final = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", start=1)}
_UNITS: Final = _DECIMAL | _BINARY

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""The name of another object in the same namespace."""

Latency = Annotated[str, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,3})?(ms|s)$", max_length=12)]
"""A latency such as `500ms`, `7.5ms` or `1.2s`."""

Duration = Annotated[str, Field(pattern=r"^[0-9]{1,6}(ms|s|m|h)$", max_length=9)]
"""A whole number of one unit: `5s`, `10m`."""

Fraction = Annotated[str, Field(pattern=r"^(0\.[0-9]{0,3}[1-9][0-9]{0,3}|1(\.0)?)$", max_length=9)]
"""More than 0 and at most 1, as a string: custom resources hold no floats."""

Objective = Annotated[str, Field(pattern=r"^0\.[5-9][0-9]{0,4}$", max_length=8)]
"""From 0.5 to below 1: an objective of 1 leaves no error budget."""

Price = Annotated[
    str,
    Field(
        pattern=r"^([1-9][0-9]{0,8}(\.[0-9]{1,6})?|0\.[0-9]{0,5}[1-9][0-9]{0,5})$", max_length=16
    ),
]
"""More than 0, in a currency of your choice, as a string: `2.49`."""

Quantity = Annotated[
    int | str,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": r"^[0-9]{1,12}(\.[0-9]{1,3})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
            "maxLength": 24,
        }
    ),
]
"""A Kubernetes quantity: `4`, `500m`, `16Gi`."""

CountOrPercent = Annotated[
    int | str,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": r"^([0-9]|[1-9][0-9]|100)%$",
            "maxLength": 4,
        }
    ),
]
"""Pods, as a number or as a percentage of the replicas: `1`, `25%`."""


def milliseconds(text: str) -> float:
    """Read a duration: `500ms` is 500, `1.2s` is 1200."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"a duration is a number and one of ms, s, m, h; got {text!r}")
    return float(match["number"]) * _UNIT_MS[match["unit"]]


def seconds(text: str) -> float:
    """Read a duration in seconds."""
    return milliseconds(text) / 1_000.0


def as_latency(value_ms: float | None) -> str | None:
    """Write milliseconds for a person: three significant digits, `48.2ms`."""
    if value_ms is None:
        return None
    return f"{value_ms:.0f}ms" if value_ms >= 100 else f"{value_ms:.1f}ms"  # noqa: PLR2004 - three digits


def amount(quantity: int | str) -> float:
    """Read a quantity: `500m` is 0.5, `2Gi` is 2147483648."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"a quantity is a number and a unit such as m, M or Gi; got {quantity!r}")
    return float(match["number"]) * _UNITS[match["unit"]]


def significant(value: float) -> str:
    """Write a number for a person with three digits that count, never as a power of ten: `1240`."""
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def timestamp(moment: datetime) -> str:
    """Write a time as Kubernetes does."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
