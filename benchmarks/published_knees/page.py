"""The page of the replayed knees, written from the results alone."""

# ruff: noqa: E501 - prose, one sentence a line

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from published_knees.cases import KNEE_4B, KNEE_70B
from published_knees.figures import SOURCE_70B
from published_knees.results import AS_PUBLISHED, TUNED, FittedFigure, Knee, Knees, Replay

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "published-knees.md"
_HOUR: Final = 3600


def page(found: Knees) -> str:
    """Write Markdown, one sentence a line."""
    large, small = _named(found, KNEE_70B.name), _named(found, KNEE_4B.name)
    parts = [
        _HEAD.format(command=found.command),
        _large(large, found.come_back_s),
        _small(small),
        _LIMITS,
    ]
    return "\n".join(parts)


_HEAD: Final = """# Published knees, replayed

**Everything on this page is simulated.**
Two services were published whose first tokens become late all at once when the load grows by little: their *knee*.
We fitted simulated devices to the published figures, offered them the published load, and then the same load again with the tuner and admission.
No GPU was used, and the published services were not run again.
It shows what the tuner would do to such a knee if the device behaves as fitted, and not how fast any of these products is.

![Time to first token and answers within the targets over load, for both services: as published, and with the tuner and admission](images/knees.png)

`make knees` fits, replays and writes this page (`{command}`), from `benchmarks/published_knees` into `benchmarks/results/knees/knees.json`.
Pods and scheduler are those of [the tuner's report](tuning-report.md): the engine's pacer and the operator's loop are the product's own code, and only the device is simulated.
As there, a request that has waited for 0.7 of its TTFT target is refused, which stands for the sidecar's forecast at the door.
"""

_LIMITS: Final = """## What this does not show

* **The device is a curve through a few points.** Where nothing was published (how long a step takes that holds prompts and decodes together, what attention costs beyond these lengths) the simulator goes by its form. With the tuner, prompts are cut into chunks that share steps with decodes, so a small gain or loss of throughput beside the published setting is the form's, not a finding.
* **A knee does not go away.** More work than a device can do is refused or waits. What the tuner and admission change is who pays: some are told at once to come back, in place of everyone waiting. To answer all of them takes more replicas, and [the autoscaler](autoscaling.md) goes by how many.
* **The sidecar is not in it.** Its part is the share of the target that a request may wait; [overload](overload.md) measures the real one.
"""


def _named(found: Knees, name: str) -> Knee:
    return next(knee for knee in found.knees if knee.name == name)


def _large(knee: Knee, come_back_s: float) -> str:
    calm, bent = knee.at(50, AS_PUBLISHED), knee.at(100, AS_PUBLISHED)
    held = knee.at(100, TUNED)
    values = knee.values
    return f"""## {knee.name}

[NVIDIA publishes]({SOURCE_70B}) means for NIM 1.8.0 with prompts of 5,000 tokens and answers of 500: so many users, each of whom asks again when the answer has ended.
Between 50 and 100 users the first token goes from 0.8 to 8 seconds, for 13 % more tokens.

**The fit.** A step reads the weights in {values["weights_ms"]:.1f} ms or computes its tokens in {values["token_us"]:.0f} µs each, whichever is longer, and reads {values["context_ns"]:.0f} ns of keys and values for each token of context.
{round(values["rows"])} sequences run at a time, which is what keys and values leave room for: that is the knee, as everyone beyond them waits for a whole answer.
{values["way_ms"]:.0f} ms are added to each first token for the way to the engine.
These five values are searched for with the figures of 1 to 100 users; those of 150 and more check the fit, and throughput follows from both latencies.
The fitted figures are off by {_percent(knee.fit_error)} (root mean square), {_worst(knee.fit, is_fitted=True)} at most; the others by {_worst(knee.fit, is_fitted=False)} at most.

{_fit_table(knee.fit)}
**Replayed.** The SLA that 50 users keep: {_seconds(knee.ttft_ms)} to the first token and {knee.tpot_ms:.0f} ms a token, for 99 of 100.
A user who is refused asks again after {come_back_s:.0f} seconds, and every refusal counts as an offered request.

{_replay_table(knee)}
Users whose requests are all alike keep the phases in which they began, so a mean below the knee depends on the beginning: at 25 users it is {knee.at(25, AS_PUBLISHED).ttft_mean_s:.2f} s here, and {_fitted_ttft_s(knee, 25):.2f} s in the fit.
At 100 users the published setting answers {bent.good_per_s * _HOUR:,.0f} requests an hour within the SLA ({calm.good_per_s * _HOUR:,.0f} at 50), and the tuner {held.good_per_s * _HOUR:,.0f}.
{_moved(held)}
The price is {_percent(held.refused)} of the offered requests refused: with all answers at their pace there is room for no more of 100 users.
"""


def _fitted_ttft_s(knee: Knee, load: float) -> float:
    return next(e.simulated for e in knee.fit if e.load == load and e.what.startswith("TTFT")) / 1e3


def _small(knee: Knee) -> str:
    values = knee.values
    bent, held = knee.at(20, AS_PUBLISHED), knee.at(20, TUNED)
    middle, middle_held = knee.at(15, AS_PUBLISHED), knee.at(15, TUNED)
    return f"""## {knee.name}

For Qwen3.5-4B behind llm-d a p90 of the first token of 2.9 seconds was published at 10 requests a second, 12.1 at 15, and 128 at 20.
Lengths, arrivals and the length of the run are not known to us, nor where in the range the engine's limits were.

**The fit.** We assume two pods that get every other request, conversations as in [the tuner's report](tuning-report.md) (prompts of 1,155 and answers of 211 tokens on average), limits of 256 sequences and 8,192 tokens, and a dense model of 4 billion parameters that reads memory at 0.8 of the datasheet.
Three values are searched for: {values["token_us"]:.0f} µs a token, arrivals with a coefficient of variation of {values["arrivals_cv"]:.1f}, and a run of {values["seconds"]:.0f} seconds.
Three values meet three figures nearly always, so this fit says that the simulator can take on the shape of this cliff, and nothing more: there is no figure left to check it.
It is off by {_percent(knee.fit_error)} (root mean square), {_worst(knee.fit, is_fitted=True)} at most; medians over three seeds.

{_fit_table(knee.fit)}
**Replayed.** The SLA that the published 10 requests a second keep: {_seconds(knee.ttft_ms)} to the first token for 90 of 100, and {knee.tpot_ms:.0f} ms a token.

{_replay_table(knee)}
At 20 requests a second the published setting answers {bent.good_per_s:.1f} a second within the SLA and the tuner {held.good_per_s:.1f}; at 15 it is {middle.good_per_s:.1f} and {middle_held.good_per_s:.1f}.
The p90 of those that are answered is {held.ttft_p90_s:.1f} seconds in place of {bent.ttft_p90_s:.0f}, and {_percent(held.refused)} are refused.
"""


def _fit_table(fit: Sequence[FittedFigure]) -> str:
    rows = [
        f"| {each.load:g} | {each.what} | {each.published:,.4g} | {each.simulated:,.4g}"
        f" | {100 * each.off:+.0f} % | {'fitted' if each.is_fitted else 'left out'} |\n"
        for each in fit
    ]
    head = "| Load | Figure | published | simulated | off by | |\n|---|---|---|---|---|---|\n"
    return head + "".join(rows)


def _replay_table(knee: Knee) -> str:
    head = (
        f"| {knee.unit.capitalize()} | Served | TTFT mean | p90 | p99 | TPOT p99"
        " | within the SLA, a second | all tokens/s | refused |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    rows = [
        f"| {each.load:g} | {each.arm} | {each.ttft_mean_s:.2f} s | {each.ttft_p90_s:.2f} s"
        f" | {each.ttft_p99_s:.2f} s | {each.tpot_p99_ms:.0f} ms | {each.good_per_s:.2f}"
        f" | {each.tokens_per_s:,.0f} | {_percent(each.refused)} |\n"
        for each in knee.replays
    ]
    return head + "".join(rows)


def _moved(held: Replay) -> str:
    if held.batch_size is None or held.token_budget is None:
        return ""
    return (
        f"It ends with a max batch size of {held.batch_size} and a token budget of"
        f" {held.token_budget:,}, and the engine paces each step within that budget."
    )


def _worst(fit: Sequence[FittedFigure], *, is_fitted: bool) -> str:
    return _percent(max(abs(each.off) for each in fit if each.is_fitted == is_fitted))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(ms: float) -> str:
    return f"{ms / 1e3:g} s"
