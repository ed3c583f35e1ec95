"""How the lanes share the tokens of a step."""

from paceline_engine.scheduling.fair_share import FairShare, Interactive
from paceline_wire.limits import Limits


def test_what_a_lane_was_given_is_not_taken_back() -> None:
    """Less than nothing would be left, and a prompt would be given a negative count of tokens."""
    limits = Limits(8, 64, interactive_share=0.5, batch_share=0.5)
    interactive = Interactive(wanted=5, is_running=True)
    step_share = FairShare().begin(("interactive", "batch"), 20, limits, interactive)

    step_share.charge("batch", 8)
    step_share.close("interactive")  # its first prompt finds no blocks

    assert step_share.left("batch") == 0
    assert step_share.next_lane() is None
