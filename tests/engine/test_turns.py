"""How the lanes share the tokens of a step."""

from paceline_engine.scheduling.turns import FairShare, Interactive
from paceline_wire.limits import Limits


def test_what_a_lane_was_given_is_not_taken_back() -> None:
    """Less than nothing would be left, and a prompt would be given a negative count of tokens."""
    limits = Limits(8, 64, interactive_share=0.5, batch_share=0.5)
    people = Interactive(wanted=5, is_running=True)
    spend = FairShare().begin(("interactive", "batch"), 20, limits, people)

    spend.charge("batch", 8)
    spend.close("interactive")  # its first prompt finds no blocks

    assert spend.left("batch") == 0
    assert spend.next_lane() is None
