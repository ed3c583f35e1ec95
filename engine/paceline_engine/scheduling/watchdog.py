"""Detects stuck admission: requests wait though a row and their blocks are free, step after step.

No cause is known in this engine, but others have been stuck like this, unnoticed, for hours.
A step counts as stuck where requests wait, a row is below the limit, the largest of the heads would
fit beside a spare block for each running request, and no prompt token was computed: a prompt in
progress may rightly keep others waiting for many steps. A lane that rightly passes its turn does so
because a row or blocks are missing, so both heads must fit.
"""

from dataclasses import dataclass

LONGEST_STEPS = 100
"""Consecutive stuck steps that count as one spell: about a second of a GPU's steps."""
LONGEST_S = 5.0
"""Seconds of stuck steps that also count as a spell: 100 steps of a CPU may take a minute."""
LEAST_STEPS = 5
"""The fewest stuck steps of a spell: a single long step proves nothing."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The requests that a step left waiting, and what was free for them."""

    waiting: int
    running: int
    max_batch_size: int
    """The batch-size limit of that step."""
    free_blocks: int
    needed_blocks: int
    """Blocks for all known tokens of the largest request that is next in its lane."""
    has_prompts: bool
    """The step computed tokens of some prompt."""

    @property
    def is_stuck(self) -> bool:
        """Whether a request could have been admitted and nothing prevented it."""
        return (
            self.waiting > 0
            and self.running < self.max_batch_size
            and not self.has_prompts
            and self.free_blocks >= self.needed_blocks + self.running
        )


@dataclass(slots=True)
class AdmissionWatchdog:
    """Counts spells of stuck admission."""

    num_spells: int = 0
    """Since start."""
    num_stuck: int = 0
    """Stuck steps in a row, up to now."""
    _since: float = 0.0
    _is_told: bool = False

    def see(self, queue: Queue | None, now: float) -> bool:
        """Record the requests that a step left waiting; return True once per spell, when detected.

        None means that no request waits for admission; while `num_stuck` is 0 it may be left out.
        """
        if queue is None or not queue.is_stuck:
            self.num_stuck, self._is_told = 0, False
            return False
        if self.num_stuck == 0:
            self._since = now
        self.num_stuck += 1
        is_long = self.num_stuck >= LONGEST_STEPS or now - self._since >= LONGEST_S
        if self._is_told or not is_long or self.num_stuck < LEAST_STEPS:
            return False
        self._is_told = True
        self.num_spells += 1
        return True
