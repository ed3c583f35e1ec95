"""What crosses between the operator and a process that tunes: targets there, reports back."""

import msgspec

from paceline_tuner.annotations import Annotation
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_target import ServiceTarget


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Limits may be changed until then, in seconds of the machine's monotonic clock."""

    until: float


class Follow(msgspec.Struct, frozen=True, tag=True):
    """This is to be tuned from now on."""

    uid: str
    target: ServiceTarget


class Forget(msgspec.Struct, frozen=True, tag=True):
    """This service is gone."""

    key: str


class MarksWanted(msgspec.Struct, frozen=True, tag=True):
    """A graph wants to be marked."""

    number: int
    """The answer has it, too."""
    since_ms: float


class WarmStartAnswer(msgspec.Struct, frozen=True, tag=True):
    """What became of a load or a save."""

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
    """The process works; what it has used."""

    cpu_s: float
    rss_bytes: int


class Concluded(msgspec.Struct, frozen=True, tag=True):
    """A round's report."""

    uid: str
    report: ServiceReport


class Unchanged(msgspec.Struct, frozen=True, tag=True):
    """A round whose report says at another time what the last one said."""

    uid: str
    key: str
    at: float


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A round failed."""

    key: str


class Marks(msgspec.Struct, frozen=True, tag=True):
    """What was decided."""

    number: int
    marks: list[Annotation]


class WarmStartWanted(msgspec.Struct, frozen=True, tag=True):
    """The stored warm start is to be read."""

    number: int


class WarmStartFound(msgspec.Struct, frozen=True, tag=True):
    """What was found out is to be stored."""

    number: int
    text: str


FromShard = Alive | Concluded | Unchanged | Failed | Marks | WarmStartWanted | WarmStartFound
