"""A `GraphCapture` that is quick: for tests of what is captured, not of what comes of it."""

from dataclasses import dataclass

from paceline_engine.runner.graph_capture import Replay


@dataclass
class RecomputeCapture:
    """Gives what computes anew, where `TapeCapture` gives what replays."""

    num_captured: int = 0

    def capture(self, compute: Replay) -> Replay:
        """See `GraphCapture`."""
        compute()
        self.num_captured += 1
        return compute
