"""The engine with a pause before each step, as a bad change of it would have."""

import sys
import time
from typing import Final

from paceline_engine.__main__ import main
from paceline_engine.engine.engine import Engine
from paceline_wire import Output

_PAUSE_S: Final = 2.0
_step = Engine.step


def _step_late(self: Engine) -> list[Output]:
    if not self.is_idle:
        time.sleep(_PAUSE_S)
    return _step(self)


if __name__ == "__main__":
    Engine.step = _step_late  # type: ignore[method-assign]  # this is the bad change
    sys.exit(main())
