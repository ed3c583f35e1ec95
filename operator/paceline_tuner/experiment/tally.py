"""ArmTally: what one arm was asked and did, and how the loads of both arms compare."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArmTally:
    """Counts over all pods of one arm, for one period."""

    requests: int = 0
    """Offered requests that ended; without those whose client left in time."""
    misses: int = 0
    ended: int = 0
    prompt_tokens: int = 0
    served: int = 0
    output_tokens: int = 0
    """Output tokens of the served requests."""
    grown: int = 0
    """Requests inside at the end, less those at the start: offered and not served yet."""
    pod_seconds: float = 0.0

    @property
    def shortfall(self) -> int:
        """Offered requests that were not served within the SLA: missed, or piling up."""
        return self.misses + max(0, self.grown)

    @property
    def offered(self) -> int:
        """Requests that came."""
        return self.requests + max(0, self.grown)

    @property
    def goodput(self) -> float:
        """Share of the offered requests that were served within the SLA."""
        return 1 - self.shortfall / self.offered if self.offered else 1.0

    def __add__(self, other: "ArmTally") -> "ArmTally":
        """Add two pods or two periods up."""
        return ArmTally(
            self.requests + other.requests,
            self.misses + other.misses,
            self.ended + other.ended,
            self.prompt_tokens + other.prompt_tokens,
            self.served + other.served,
            self.output_tokens + other.output_tokens,
            self.grown + other.grown,
            self.pod_seconds + other.pod_seconds,
        )


NOTHING = ArmTally()


def load_ratio(base: ArmTally, candidate: ArmTally) -> float:
    """Compare the tokens per second and pod that the arms were offered: candidate over base.

    Asked of arrivals only: what an arm refuses or leaves waiting was offered all the same, with
    the mean output of both arms in place of the tokens that nobody knows.
    """
    both = base + candidate
    output = both.output_tokens / both.served if both.served else 0.0
    prompt = both.prompt_tokens / both.ended if both.ended else 0.0

    def rate(arm: ArmTally) -> float:
        tokens = arm.prompt_tokens + arm.ended * output + arm.grown * (prompt + output)
        return max(tokens, 1.0) / max(arm.pod_seconds, 1.0)

    return rate(candidate) / rate(base)
