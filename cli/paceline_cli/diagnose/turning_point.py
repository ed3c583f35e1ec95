"""The batch size at which decode turns from memory-bound to compute-bound. Pure.

A step that decodes B sequences with C tokens of context each takes, by the step model
(`paceline_wire.step_cost`), with T = B and no prompts,

    t(B) = th0 + th3 * B*C/1e3   +   th1*B + th2*max(0, B - h)
           reading memory            arithmetic

th0 is what every step takes whatever it computes: the weights are read once, kernels are launched.
th3 is the reading of keys and values. While the first two outweigh the others, another sequence
costs little; from B* on, where they are equal, each costs its arithmetic:

    B* = the least B with  th1*B + th2*max(0, B - h)  >=  th0 + th3*B*C/1e3

It is the ridge of the roofline (Williams, Waterman, Patterson: "Roofline: an insightful visual
performance model", 2009) with coefficients that were fitted instead of read from a datasheet.
"""

from collections.abc import Sequence


def turning_batch(theta: Sequence[float], knee: float, context: float) -> float | None:
    """Return B*; None where each sequence reads more than it computes, however many there are.

    `context` is the mean context of one sequence, tokens.
    """
    th0, th1, th2, th3, _ = theta
    # By how much the arithmetic of each sequence below the knee outweighs its reading, ms.
    gain = th1 - th3 * context / 1e3
    if gain > 0 and th0 / gain <= knee:
        return th0 / gain
    if gain + th2 <= 0:
        return None
    return (th0 + th2 * knee) / (gain + th2)
