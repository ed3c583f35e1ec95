"""A profile of a few steps by torch's profiler, taken while the engine serves.

The thread that steps starts and stops it, between two steps. Writing the trace takes seconds, and
is done by a thread beside it.
"""

import gzip
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from paceline_engine.hardware.placing import leave_core
from paceline_wire import ProfileSteps, StepTrace

MAX_BYTES = 256 * 1024 * 1024
"""A larger trace is not given out: no viewer opens it."""
_GZIP_LEVEL = 5

Result = TypeVar("Result")


class Recording(Protocol):
    """One profile: torch's, but for tests of this module."""

    def start(self) -> None:
        """Record from now on."""
        ...

    def step(self) -> None:
        """Mark the end of a step."""
        ...

    def stop(self) -> None:
        """Record no longer."""
        ...

    def export_chrome_trace(self, path: str) -> None:
        """Write it as JSON."""
        ...


@dataclass(slots=True)
class _Profile:
    """The one that is being taken."""

    asked: ProfileSteps
    recording: Recording
    ends_at: float
    steps: int = 0


class StepProfiler:
    """Records steps when asked, one profile at a time. Owned by the step loop's thread."""

    def __init__(
        self,
        send: Callable[[StepTrace], None],
        *,
        clock: Callable[[], float],
        record: Callable[[], Recording] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._send = send
        """Called in any thread."""
        self._clock = clock
        self._record = record or torch_profile
        self._max_bytes = max_bytes
        self.is_recording = False
        """Whether the next step is to be given to `run`: a plain attribute, read for each step."""
        self._profile: _Profile | None = None
        self._writing: threading.Thread | None = None

    def start(self, asked: ProfileSteps) -> None:
        """Begin with the next step, or answer why not."""
        if self._profile is not None or (self._writing is not None and self._writing.is_alive()):
            error = "another profile is being taken"
            self._send(StepTrace(asked.call, error=error, is_busy=True))
            return
        recording = self._record()
        recording.start()
        self._profile = _Profile(asked, recording, self._clock() + asked.within_s)
        self.is_recording = True

    def run(self, step: Callable[[], Result], num_steps: Callable[[], int]) -> Result:
        """Run a step that is recorded; `num_steps` counts those that had something to run."""
        profile = self._profile
        if profile is None:
            return step()
        before = num_steps()
        result = step()
        if num_steps() > before:
            profile.recording.step()
            profile.steps += 1
        if profile.steps >= profile.asked.steps or self._clock() >= profile.ends_at:
            self._end(profile)
        return result

    def _end(self, profile: _Profile) -> None:
        self._profile, self.is_recording = None, False
        profile.recording.stop()
        if not profile.steps:
            error = (
                f"within_s: no step ran within {profile.asked.within_s:g} s; ask while requests run"
            )
            self._send(StepTrace(profile.asked.call, error=error))
            return
        # A daemon: a long trace must not keep a process that leaves.
        self._writing = threading.Thread(
            target=self._write, args=(profile,), name="paceline-profile", daemon=True
        )
        self._writing.start()

    def _write(self, profile: _Profile) -> None:
        leave_core()
        call = profile.asked.call
        try:
            self._send(self._written(profile))
        except Exception as error:  # noqa: BLE001 - every call is answered, whatever went wrong
            self._send(StepTrace(call, error=f"the trace: {type(error).__name__}: {error}"))

    def _written(self, profile: _Profile) -> StepTrace:
        call, steps = profile.asked.call, profile.steps
        with tempfile.TemporaryDirectory(prefix="paceline-profile-") as folder:
            path = Path(folder) / "trace.json"
            profile.recording.export_chrome_trace(str(path))
            size = path.stat().st_size
            if size > self._max_bytes:
                error = (
                    f"steps: the trace of {steps} steps must be at most {self._max_bytes} bytes,"
                    f" got {size}"
                )
                return StepTrace(call, steps, error=error)
            return StepTrace(call, steps, gzip.compress(path.read_bytes(), _GZIP_LEVEL))


def torch_profile() -> Recording:
    """Make a profile of what this thread runs, and of the GPU beside it."""
    # Not imported at the top: the step loop itself needs no torch.
    import torch  # noqa: PLC0415 - as above
    from torch.profiler import ProfilerAction, ProfilerActivity, profile  # noqa: PLC0415 - as above

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    # With a schedule, whatever it says, each step has a name in the trace.
    return profile(activities=activities, schedule=lambda _: ProfilerAction.RECORD)
