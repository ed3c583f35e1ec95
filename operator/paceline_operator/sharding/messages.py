"""What crosses between the operator and a process that tunes: targets there, reports back."""

import msgspec

from paceline_tuner.annotations import Annotation
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_target import ServiceTarget


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Limits may be changed until then, in seconds of the machine's monotonic clock."""

    until: float


class Follow(msgspec.Struct, frozen=True, tag=True):
    """Tune this service from now on."""

    uid: str
    target: ServiceTarget


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Stop tuning this service: it was deleted."""

    key: str


class MarksWanted(msgspec.Struct, frozen=True, tag=True):
    """Send the annotations since a time, for Grafana."""

    number: int
    """Identifies the request; the answer repeats it."""
    since_ms: float


class WarmStartAnswer(msgspec.Struct, frozen=True, tag=True):
    """The result of loading or saving the warm start."""

    number: int
    text: str
    """The warm start as it was stored."""
    problem: str
    """Why it could not be done; empty where it was."""


class Learned(msgspec.Struct, frozen=True, tag=True):
    """What pods of other processes found out."""

    text: str


ToShard = Grant | Follow | Forget | MarksWanted | WarmStartAnswer | Learned


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A heartbeat, with the CPU time and memory that the process has used."""

    cpu_s: float
    rss_bytes: int


class Concluded(msgspec.Struct, frozen=True, tag=True):
    """A round's report."""

    uid: str
    report: ServiceReport


class Unchanged(msgspec.Struct, frozen=True, tag=True):
    """A round whose report differs from the last one only in its time."""

    uid: str
    key: str
    at: float


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A round failed."""

    key: str


class Marks(msgspec.Struct, frozen=True, tag=True):
    """The annotations that `MarksWanted` asked for."""

    number: int
    marks: list[Annotation]


class WarmStartWanted(msgspec.Struct, frozen=True, tag=True):
    """Load the stored warm start."""

    number: int


class WarmStartFound(msgspec.Struct, frozen=True, tag=True):
    """Merge this warm start into the stored one."""

    number: int
    text: str


FromShard = Alive | Concluded | Unchanged | Failed | Marks | WarmStartWanted | WarmStartFound
