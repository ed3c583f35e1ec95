"""How long until a request that comes now gets its first token, from the engine's own steps."""

from collections import deque

from paceline_wire import EngineLoad, StepRecord

_WINDOW_S = 10.0
_LEAST_EVIDENCE_S = 0.5
_MOST_CACHED = 0.95
"""Tokens that nobody has to compute come at any rate: beyond this share the rate says nothing."""


class PrefillRate:
    """Prompt tokens that the engine works off per second while prompts wait, cached ones included.

    Only steps that began or ended with tokens waiting say how fast a backlog shrinks: any other
    step had less to do than it could have done. The step that ends a backlog counts, too. Where
    rows are short and not the budget, most steps of a backlog compute no prompt, and the last one
    does.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int, float]] = deque()
        self._tokens = 0
        self._busy_s = 0.0
        self._left_waiting = False
        self._lookups: deque[tuple[float, int, int]] = deque()
        """Time, and the counts of prompt tokens looked up and found in the prefix cache."""

    def learn(self, steps: list[StepRecord], load: EngineLoad | None = None) -> None:
        """Take in new steps and let go of those older than the window."""
        for step in steps:
            leaves_waiting = step.waiting_tokens > 0
            if step.clean and (leaves_waiting or self._left_waiting):
                self._add(step.at, step.prefill, step.wall_ms / 1e3)
            self._left_waiting = leaves_waiting
        newest = steps[-1].at if steps else 0.0
        while self._steps and self._steps[0][0] < newest - _WINDOW_S:
            _, tokens, seconds = self._steps.popleft()
            self._tokens -= tokens
            self._busy_s -= seconds
        if steps and load is not None:
            self._lookups.append((newest, load.prefix_queries, load.prefix_hits))
            # The oldest is what the others are compared with: one beyond the window stays.
            while len(self._lookups) > 1 and self._lookups[1][0] < newest - _WINDOW_S:
                self._lookups.popleft()

    def forget(self) -> None:
        """Drop what was measured: another engine has another rate."""
        self._steps.clear()
        self._lookups.clear()
        self._tokens, self._busy_s = 0, 0.0
        self._left_waiting = False

    @property
    def tokens_per_s(self) -> float | None:
        """None while there is too little evidence to turn anybody away."""
        if self._busy_s < _LEAST_EVIDENCE_S or self._tokens <= 0:
            return None
        return self._tokens / self._busy_s / (1 - self._cached_share())

    def _cached_share(self) -> float:
        """Return the share of the prompt tokens of late that was found in the prefix cache."""
        if not self._lookups:
            return 0.0
        (_, queries, hits), (_, last_queries, last_hits) = self._lookups[0], self._lookups[-1]
        looked_up = last_queries - queries
        return min((last_hits - hits) / looked_up, _MOST_CACHED) if looked_up > 0 else 0.0

    def _add(self, at: float, tokens: int, seconds: float) -> None:
        self._steps.append((at, tokens, seconds))
        self._tokens += tokens
        self._busy_s += seconds


class TokenPace:
    """How long a running request waits for a token: the mean step that has a decode."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque()
        self._busy_s = 0.0

    def learn(self, steps: list[StepRecord]) -> None:
        """Take in new steps and let go of those older than the window."""
        for step in steps:
            if step.decode > 0 and step.clean:
                self._steps.append((step.at, step.wall_ms / 1e3))
                self._busy_s += step.wall_ms / 1e3
        newest = steps[-1].at if steps else 0.0
        while self._steps and self._steps[0][0] < newest - _WINDOW_S:
            self._busy_s -= self._steps.popleft()[1]

    def forget(self) -> None:
        """Drop what was measured: another engine has another pace."""
        self._steps.clear()
        self._busy_s = 0.0

    def answer_s(self, max_tokens: int) -> float | None:
        """Predict an answer of so many tokens; None for 0, or with too little evidence."""
        if not max_tokens or self._busy_s < _LEAST_EVIDENCE_S:
            return None
        return max_tokens * self._busy_s / len(self._steps)


def seconds_to_first_token(*, tokens_ahead: int, own_tokens: int, rate: float | None) -> float:
    """Predicted TTFT; 0 when nobody waits ahead or the rate is not known."""
    if rate is None or tokens_ahead <= 0:
        return 0.0
    return (tokens_ahead + own_tokens) / rate
