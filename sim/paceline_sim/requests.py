"""What a run of the simulator is offered: one row per request, in the order of arrival."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Arrays of equal length [requests], sorted by arrival."""

    arrival_s: npt.NDArray[np.float64]
    prompt: npt.NDArray[np.int64]
    """Prompt tokens, at least 1."""
    output: npt.NDArray[np.int64]
    """Output tokens, at least 1."""
    cached: npt.NDArray[np.int64]
    """Prompt tokens found in the prefix cache, fewer than `prompt`."""
    lane: npt.NDArray[np.int8]
    """0 interactive, 1 batch."""
    turn_s: npt.NDArray[np.float64] | None = None
    """Orders the requests that wait in a lane; None orders them by arrival."""
    patience_s: npt.NDArray[np.float64] | None = None
    """Longest wait for the first admission before a request is shed; None sheds none."""

    def __post_init__(self) -> None:
        """Refuse lists that no run could be made from."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the arrays must have equal lengths, got {lengths}")
        if np.any(np.diff(self.arrival_s) < 0):
            raise ValueError("arrival_s must be sorted")
        if np.any(self.prompt < 1) or np.any(self.output < 1):
            raise ValueError("prompt and output must be at least 1 token")
        if np.any(self.cached < 0) or np.any(self.cached >= self.prompt):
            raise ValueError("cached must be at least 0 and less than prompt")
        if np.any((self.lane != 0) & (self.lane != 1)):
            raise ValueError("lane must be 0 or 1")

    def __len__(self) -> int:
        """Count the requests."""
        return len(self.arrival_s)
