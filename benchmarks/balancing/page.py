"""The page, written from the results alone."""

# ruff: noqa: E501 - prose, one sentence a line

from pathlib import Path
from typing import Final

from balancing.policies import (
    BY_PREFIX,
    BY_SESSION,
    BY_UTILIZATION,
    COARSE,
    LEAST_REQUEST,
    ROUND_ROBIN,
)
from balancing.results import ALIKE, MIXED, Results, Row

_FULL: Final = 0.95
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "balancing.md"
TITLES: Final = {
    ALIKE: "Fifty pods that are alike",
    MIXED: "Forty pods, and ten that are half as fast",
}


def page(alike: Results, mixed: Results) -> str:
    """Write Markdown, one sentence a line."""
    fast, slow = mixed.parts
    return "\n".join(
        [
            _HEAD,
            _HOW.format(
                rps=fast.capacity_rps,
                batch=fast.max_batch_size,
                budget=fast.token_budget,
                slow_rps=slow.capacity_rps,
                seeds=_seeds(alike, mixed),
                ratio=fast.capacity_rps / slow.capacity_rps,
            ),
            f"## {TITLES[ALIKE]}\n\n{_table(alike)}",
            _alike(alike),
            f"## {TITLES[MIXED]}\n\n{_table(mixed)}",
            _mixed(mixed),
            _LIMITS,
        ]
    )


_HEAD: Final = """# Balancing policies

**Everything on this page is simulated.**
Fifty replicas stand behind a gateway that balances as Envoy does, by each of its policies in turn, under the same sessions.
It shows how far the policy alone moves the SLA, and not how fast a device or a gateway is.

![Requests that miss the SLA, and the p99 of first tokens, over load by balancing policy, for pods that are alike and for a fleet with slower ones](images/balancing.png)

`make balancing` plays all of it and writes this page (`PYTHONPATH=benchmarks python -m balancing`), from `benchmarks/balancing` into `benchmarks/results/balancing`.
"""

_HOW: Final = """## What is played

* **Pods** are [the simulator's](tuning-report.md): a 70B model on four H100 each, with an SLA of 2 s to the first token and 60 ms a token for 99 of 100 requests. The tuner comes to rest on one of them first, at a max batch size of {batch} and a token budget of {budget}, and says λ\\*: {rps:.2f} requests a second, with the prefix hits that round robin leaves. The slower pods take twice as long for every step, and their λ\\* is {slow_rps:.2f}, {ratio:.1f} times less. A pod that has let a request wait for 0.7 of the target refuses it, and the gateway passes the refusal on.
* **Sessions** of eight turns on average: a prompt is the beginning that an application's sessions share (500 to 1,500 tokens; of 500 applications the most popular has 3.6 % of the sessions), all that was said, and something new. Activity is log-normal, and requests come by chance at 70, 85 and 95 % of the fleet's λ\\*.
* **Prefix caches** have the KV memory that no running request holds, and drop what was unused for longest. Five minutes of requests fill them before a run; 90 seconds of a run are counted.
* **Policies**: *round robin*; *least request*, the less busy of two that are drawn; a *hash ring* of 1,024 places by session or by the prompt's beginning, which is its application; and *weights by utilization*, Envoy's client-side weighted round robin. A weight is `rps_fractional / application_utilization` of the pod's newest report, cut to a whole number of at least 1, worked out every second, from ten seconds after the first report; reports are made by [the sidecar's own code](gateways.md#what-a-pod-says-of-its-load). Eight workers of the gateway each take turns by themselves.

The tables give medians over {seeds}, with the range in brackets. TTFT is that of answered requests; a refused one is a miss. Utilization is λ/λ\\* of the pod that got least, the middle one and the one that got most.
"""

_LIMITS: Final = """## What this does not show

* **λ\\* stays what it was.** A real pod's λ\\* rises with its prefix hits, since the tuner learns it from the traffic that comes. With hashing, a utilization above 1 in the tables is therefore not yet an overload.
* **No pod comes or goes.** When one leaves, the ring moves its sessions alone, and each of them computes its prompt once more.
* **The gateway's other ways are left out**: bounded loads (`hash_balance_factor`), Maglev, zones, and retries. Nor is there an endpoint picker that reads the pods' queues and caches.
* **What hits are worth depends on the prompts.** Here most of a prompt was said before. Without shared beginnings, hashing keeps its uneven shares and has nothing for them.
"""


def _seeds(*fleets: Results) -> str:
    counts = [len(each.rows[0].runs) for each in fleets]
    return (
        "one seed"
        if max(counts) == 1
        else " and ".join(f"{count} seeds" for count in sorted(set(counts)))
    )


def _table(results: Results) -> str:
    head = (
        "| Load | Policy | Within the SLA | Goodput, a second | TTFT p99 | Refused | Prefix hits"
        " | Utilization of pods |\n|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(_line(row) for row in sorted(results.rows, key=lambda row: row.load))


def _line(row: Row) -> str:
    least, middle, most = row.used()
    low, high = row.ends("attained")
    fast, slow = row.ends("ttft_p99_s")
    return (
        f"| {row.load:.0%} | {row.policy} | {_percent(row.median('attained'))}"
        f" ({_percent(low)} to {_percent(high)}) | {row.median('goodput_rps'):.1f}"
        f" | {row.median('ttft_p99_s'):.2f} s ({fast:.2f} to {slow:.2f})"
        f" | {_percent(row.median('refused'))} | {row.median('hits'):.0%}"
        f" | {least:.2f}, {middle:.2f}, {most:.2f} |\n"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _alike(results: Results) -> str:
    turns, session, prefix = (
        results.at(name, _FULL) for name in (ROUND_ROBIN, BY_SESSION, BY_PREFIX)
    )
    least, weights = results.at(LEAST_REQUEST, _FULL), results.at(BY_UTILIZATION, _FULL)
    return f"""* **Weights by utilization** have nothing to gain here and lose a little: pods of one λ\\* should have one weight, but the rates that they report waver, and utilizations lie between {weights.used()[0]:.2f} and {weights.used()[2]:.2f}. At 95 % {_met(weights)} are within the SLA, and {_met(turns)} in turn.
* **Least request** compares what is inside a pod, which is mostly answers under way and says little of the prompts that wait: {_met(least)}, and a p99 of {_p99(least)} where round robin has {_p99(turns)}.
* **Hashing by session** finds {session.median("hits"):.0%} of the prompt tokens in caches, where round robin finds {turns.median("hits"):.0%}: half of the first tokens come within {session.median("ttft_p50_s"):.2f} s in place of {turns.median("ttft_p50_s"):.2f} s. Its shares are uneven, as the ring's are and as sessions are: the pod that gets most has {session.used()[2]:.2f} times its λ\\* at 95 %, and {_met(session)} are within the SLA.
* **Hashing by the prompt's beginning** finds most ({prefix.median("hits"):.0%}) and is the most uneven ({prefix.used()[2]:.2f} times λ\\*), since a popular application has one pod: {_met(prefix)} at 95 %.
"""


def _mixed(results: Results) -> str:
    turns, least, session, prefix, weights, coarse = (
        results.at(name, _FULL)
        for name in (ROUND_ROBIN, LEAST_REQUEST, BY_SESSION, BY_PREFIX, BY_UTILIZATION, COARSE)
    )
    fast, slow = results.parts
    return f"""* **Round robin** gives slow pods as much as fast ones, {turns.used()[2]:.2f} times what they can serve at 95 %: {_met(turns)} within the SLA, and {results.at(ROUND_ROBIN, 0.7).median("attained"):.1%} even at 70 %.
* **Least request** notices a slow pod by what piles up in it: {_met(least)} at 95 %.
* **Weights by utilization** know what each can serve: {_met(weights)} at 95 %, the best of those that do not hash. Envoy cuts a weight to a whole number, and so reports tell rates in hundredths: as requests a second {fast.capacity_rps:.2f} and {slow.capacity_rps:.2f} would weigh {int(fast.capacity_rps)} and {max(1, int(slow.capacity_rps))}, and the slow pods would get {coarse.used()[2]:.2f} times their λ\\* in place of {weights.used()[2]:.2f}, with {_met(coarse)} within the SLA.
* **Hashing** knows no capacity, and its slow pods get up to {session.used()[2]:.2f} (session) and {prefix.used()[2]:.2f} (beginning) times the λ\\* that they have without hits. With hits of {session.median("hits"):.0%} and {prefix.median("hits"):.0%} there is so much less to compute that {_met(session)} and {_met(prefix)} are within the SLA.
"""


def _met(row: Row) -> str:
    return f"{row.median('attained'):.1%}"


def _p99(row: Row) -> str:
    return f"{row.median('ttft_p99_s'):.2f} s"
