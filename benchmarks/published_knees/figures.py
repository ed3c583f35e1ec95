"""What was published of two services whose first tokens become late beyond a load."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class UsersPoint:
    """So many users, each of whom asks again as soon as the answer has ended; means."""

    users: int
    ttft_ms: float
    itl_ms: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class RatePoint:
    """So many requests a second."""

    rps: float
    ttft_p90_s: float


SOURCE_70B: Final = "https://docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance"
PROMPT_70B, OUTPUT_70B = 5000, 500
POINTS_70B: Final = (
    UsersPoint(1, 406.77, 18.58, 51.67),
    UsersPoint(5, 546.7, 21.83, 218.48),
    UsersPoint(25, 688.69, 38.75, 623.4),
    UsersPoint(50, 834.51, 59.73, 814.37),
    UsersPoint(100, 7996.25, 92.91, 917.26),
    UsersPoint(150, 34_794.22, 92.86, 920.9),
    UsersPoint(200, 61_680.22, 93.06, 920.54),
    UsersPoint(250, 88_605.32, 93.2, 920.12),
)
"""Llama-3.3-70B in FP8 on two H100 as one, NIM 1.8.0, all prompts and all answers of one length."""
FITTED_70B: Final = (1, 5, 25, 50, 100)
"""Users of the points that the device is fitted to; the others are left out to check it."""

POINTS_4B: Final = (RatePoint(10.0, 2.9), RatePoint(15.0, 12.1), RatePoint(20.0, 128.0))
"""Qwen3.5-4B on two RTX PRO 6000 behind llm-d. Lengths, arrivals and duration are not known."""
