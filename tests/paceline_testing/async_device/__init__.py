"""A GPU that takes its time: what is queued on it runs when somebody waits, or whenever it likes.

Tensors on the device are real, on the host's memory; ops on them are queued on the current stream.
A stream's work runs in order. Work of two streams runs in any order that events allow, chosen by a
`Schedule`. What goes wrong on a GPU goes wrong here:

* a copy reads and writes pinned memory when it runs, not when it is queued; until then the memory
  that it writes to holds garbage;
* memory of a tensor that nobody holds any more is given to others on the stream that took it, and
  holds garbage from then on; only streams that `record_stream` names are waited for;
* memory that nothing has written holds garbage.

Kernels of ours are computed by their references. Memory of graphs is kept between replays.
"""

from paceline_testing.async_device.device import AsyncDevice
from paceline_testing.async_device.work import AT_ONCE, LATE, Schedule, any_schedule

__all__ = ["AT_ONCE", "LATE", "AsyncDevice", "Schedule", "any_schedule"]
