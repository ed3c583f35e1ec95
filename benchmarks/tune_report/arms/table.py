"""Every arm by its name."""

from tune_report.arms.arm import Arm, static
from tune_report.arms.ours import START, ablations, ours
from tune_report.arms.pi import PiOnP99
from tune_report.arms.ppas import p_pas
from tune_report.arms.rules import Aimd, Gradient2, TensorRt, by
from tune_report.arms.vegas import Vegas

LARGE, SMALL = (1024, 8192), (256, 2048)
DEFAULTS = ("default 1024/8192", "default 256/2048")
RULES = (
    "AIMD 1024/8192",
    "AIMD 256/2048",
    "PI on p99",
    "gradient2",
    "Vegas",
    "TensorRT-LLM",
    "P-PAS",
)


def arms() -> dict[str, Arm]:
    """Each named arm; fixed limits are named by their numbers, see `named`."""
    table = (
        Arm("default 1024/8192", LARGE),
        Arm("default 256/2048", SMALL),
        Arm("AIMD 1024/8192", LARGE, control=by(Aimd)),
        Arm("AIMD 256/2048", SMALL, control=by(Aimd)),
        Arm("PI on p99", SMALL, control=by(PiOnP99)),
        Arm("gradient2", SMALL, control=by(Gradient2)),
        Arm("Vegas", SMALL, control=by(Vegas)),
        Arm("TensorRT-LLM", SMALL, control=by(TensorRt)),
        p_pas(),
        ours(),
        *ablations(),
    )
    return {arm.name: arm for arm in table}


def named(name: str) -> Arm:
    """Find an arm; `static 64/512` is fixed limits. Raises KeyError for a name unknown."""
    if name.startswith("static "):
        batch, _, budget = name.removeprefix("static ").partition("/")
        return static(int(batch), int(budget))
    return arms()[name]


__all__ = ["DEFAULTS", "LARGE", "RULES", "SMALL", "START", "arms", "named"]
