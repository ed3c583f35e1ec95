"""docs/which-batching.md prints figures of ours bold: each is what the committed results say.

The expected figures of a section stand here in the order in which the page has them. A result that
is measured anew changes them, and the page must follow.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import pytest

from paceline_cli.bench.comparison import ArmResult, read_comparison
from paceline_cli.bench.measures import Latency, Measures
from paceline_cli.bench.sweep_points import Sweep, read_sweeps
from paceline_cli.plan.sequences import preallocated_batch
from paceline_engine.core.model_config import ModelConfig
from paceline_sim.hardware import CPU_135M, LLAMA_8B
from pictures import sequences

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "which-batching.md"
BOLD = re.compile(r"\*\*(.+?)\*\*")
FIELD = re.compile(r"(?:engine|sla|lanes|tuning|admission)\.[A-Za-z0-9.]+")

STATIC, MIXED, BUCKETS = "static", "dynamic, mixed", "dynamic, bucketed"
CONTINUOUS, TUNED = "continuous", "continuous, tuned"
SMOLLM2_135M = replace(
    LLAMA_8B,
    num_layers=30,
    hidden_size=576,
    num_q_heads=9,
    num_kv_heads=3,
    head_size=64,
    windows=(),
)
BLOCK = 16
GIB = 2**30
RESERVED = 8192
"""Tokens that are reserved for each request where memory is not paged."""


def middle(values: Iterable[float]) -> float:
    """Return the median of figures from JSON, whose type nobody checked."""
    return float(median(values))


@cache
def raw(name: str) -> Any:  # JSON of many shapes
    """Read a result file."""
    return json.loads((RESULTS / name).read_text())


@cache
def sections() -> dict[str, list[str]]:
    """Return the bold figures of each section, in order."""
    parts = re.split(r"^##+ (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return {
        heading: found
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
        if (found := [bold for bold in BOLD.findall(text) if re.search(r"\d", bold)])
    }


@cache
def comparison() -> dict[tuple[str, float], ArmResult]:
    """Return each way of batching at each load."""
    found = read_comparison(RESULTS / "cpu/compare.json").found
    return {(each.arm, each.load): each for each in found}


def arm(name: str, load: float = 1.0) -> Measures:
    """Return what clients saw of one way of batching."""
    return comparison()[name, load].measured


@cache
def sweep() -> Sweep:
    """Read the sweep."""
    (found,) = read_sweeps([RESULTS / "cpu/sweep.json"])
    return found


def at_batch(size: int) -> Measures:
    """Return the point of a batch size."""
    points = sweep().along("batch_size")
    return next(each.measured for each in points if each.setting.batch_size == size)


def at_budget(tokens: int) -> Measures:
    """Return the point of a token budget."""
    points = sweep().along("token_budget")
    return next(each.measured for each in points if each.setting.token_budget == tokens)


def tuner() -> Measures:
    """Return the tuner's point of the sweep."""
    chosen = sweep().chosen
    assert chosen is not None
    return chosen.measured


def known(value: float | None) -> float:
    """Return a figure that must have been measured."""
    assert value is not None
    return value


def attained(measured: Measures, digits: int = 1) -> str:
    return f"{100 * known(measured.attainment.value):.{digits}f} %"


def goodput(measured: Measures) -> float:
    return known(measured.goodput_tokens_per_s.value)


def throughput(measured: Measures) -> float:
    return known(measured.output_tokens_per_s.value)


def p99_ms(latency: Latency) -> float:
    return known(latency.at(0.99).ms.value)


def p99_s(latency: Latency, digits: int) -> str:
    return f"{p99_ms(latency) / 1e3:.{digits}f} s"


def padding(name: str, load: float = 1.0) -> float:
    return comparison()[name, load].padding_share


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def times(factor: float, digits: int = 2) -> str:
    return f"{factor:.{digits}f} times"


def kv_bytes(config: ModelConfig) -> int:
    return config.kv_bytes_per_token(2)


def paged(config: ModelConfig, tokens: int) -> int:
    """Return how many requests of so many tokens 1 GiB of blocks holds."""
    num_blocks = GIB // (kv_bytes(config) * BLOCK)
    return num_blocks // math.ceil(tokens / BLOCK)


def reserved(config: ModelConfig) -> int:
    return GIB // kv_bytes(config) // RESERVED


def words() -> list[str]:
    one, four = at_batch(1), at_batch(4)
    return [
        f"{throughput(one):.0f} tokens a second",
        f"{throughput(four):.0f}",
        *(f"{known(each.itl.at(0.5).ms.value):.1f} ms" for each in (one, four)),
    ]


def static() -> list[str]:
    return [
        *(attained(arm(STATIC, load)) for load in (0.25, 0.5, 1.0)),
        p99_s(arm(STATIC).ttft, 1),
        percent(padding(STATIC)),
    ]


def dynamic() -> list[str]:
    return [
        *(attained(arm(name, 0.5)) for name in (MIXED, BUCKETS)),
        *(p99_s(arm(name, 0.5).ttft, 2) for name in (MIXED, BUCKETS)),
        *(attained(arm(name)) for name in (MIXED, BUCKETS)),
        *(percent(padding(name)) for name in (MIXED, BUCKETS)),
    ]


def continuous() -> list[str]:
    return [
        attained(arm(CONTINUOUS)),
        p99_s(arm(CONTINUOUS).ttft, 2),
        p99_s(arm(BUCKETS).ttft, 1),
        attained(arm(TUNED)),
        *(f"{p99_ms(arm(name, 0.5).itl):.0f} ms" for name in (CONTINUOUS, BUCKETS)),
    ]


def capacities() -> tuple[str, str, str]:
    """Return the tuner's capacity, the default's, and their ratio, as the report gives them."""
    (told,) = (
        each["measured"]
        for each in raw("tuning/figures.json")["figures"]
        if each["claim"].endswith("over default 256/2048")
    )
    found = re.fullmatch(r"([\d.]+) over ([\d.]+) req/s: ([\d.]+)x", told)
    assert found is not None
    return found[1], found[2], found[3]


def chunked() -> list[str]:
    small, large = at_budget(64), at_budget(1024)
    ours, default, _ = capacities()
    return [
        *(f"{p99_ms(each.itl):.0f} ms" for each in (small, large)),
        f"{goodput(small):.0f}",
        f"{goodput(large):.0f} tokens a second",
        *(p99_s(each.ttft, 2) for each in (small, large)),
        f"{default} requests a second",
        ours,
    ]


def memory() -> list[str]:
    return [
        f"{GIB // kv_bytes(LLAMA_8B):,} tokens",
        f"{reserved(LLAMA_8B)} request",
        f"{paged(LLAMA_8B, 1000)} requests",
        str(preallocated_batch(sequences.MEMORY.tokens, sequences.SHOWN, BLOCK)),
        str(preallocated_batch(sequences.MEMORY.tokens, RESERVED, BLOCK)),
    ]


def prefix_ms(name: str) -> float:
    return middle(each[name] for each in raw("cpu/prefix.json"))


def prefixes() -> list[str]:
    return [f"{prefix_ms('first_ms'):,.0f} ms", f"{prefix_ms('second_ms'):.0f} ms"]


def drafted(text: str, load: int) -> dict[str, Any]:
    rows = raw("cpu/speculation.json")
    return next(each for each in rows if (each["text"], each["load"]) == (text, load))


def speculation() -> list[str]:
    one, many = (drafted("repetitive", load)["ratio"] for load in (1, 16))
    prose = [drafted("prose", load)["ratio"] for load in (1, 16)]
    cells = [times(one), times(many), f"{prose[0]:.2f}", times(prose[1])]
    for text, between in (("json, forced alone", "and"), ("json", "to")):
        alone, sixteen = (drafted(text, load) for load in (1, 16))
        cells += [
            times(alone["ratio"]),
            f"{sixteen['lowest']:.2f} {between} {sixteen['highest']:.2f}",
            f"{sixteen['ratio']:.2f}",
        ]
    return cells


def lanes() -> list[str]:
    without, lane = raw("scenes/flood.json")["tracks"]
    return [f"{lane['flooded_p99_ms']:.0f} ms", f"{without['flooded_p99_ms'] / 1e3:.0f} s"]


def scene(name: str) -> dict[str, Any]:
    scenes = raw("overload/overload.json")["scenes"]
    return next(each for each in scenes if each["name"].startswith(name))


def good_at_overload(name: str) -> float:
    return middle(
        each["good_rps"]
        for each in raw("tuning/figures.json")["scores"]
        if (each["workload"], each["arm"]) == ("H100 ITL 50: steady 1.15", name)
    )


def backpressure() -> list[str]:
    burst = scene("200 at one instant")["outcomes"]
    return [
        str(burst["whole"]),
        str(burst["refused"]),
        f"{scene('10 times')['good_rps']:.1f} good requests a second",
        f"{scene('capacity')['good_rps']:.1f}",
        f"{good_at_overload('ours'):.1f} good requests a second",
        f"{good_at_overload('ours, no shedding'):.1f}",
    ]


def apart() -> list[str]:
    sent = 1000 * kv_bytes(LLAMA_8B)
    at_10, at_400 = (1e3 * 8 * sent / (gbit * 1e9) for gbit in (10, 400))
    return [f"{sent / 1e6:.0f} MB", f"{at_10:.0f} ms", f"{at_400:.1f} ms"]


def by_traffic() -> list[str]:
    def short_met(way: str) -> float:
        return middle(
            each["figures"]["short_met"]
            for each in raw("order/classes.json")
            if each["study"].startswith("long prompts beside conversation, H100: 1.5 s")
            and (each["load"], each["way"]) == (0.95, way)
        )

    ways = ("classes, by deadline", "one target, that of the long")
    return [f"{100 * short_met(way):.1f} %" for way in ways]


def longest_over_mean(batch: int) -> float:
    """Return what a batch's longest answer is over the mean one, for the comparison's lengths."""
    drawn = NormalDist(math.log(16), 0.5)

    def at_least(length: int) -> float:
        return 1.0 if length <= 8 else 1 - drawn.cdf(math.log(length - 0.5))

    lengths = range(1, 49)
    longest = sum(1 - (1 - at_least(length)) ** batch for length in lengths)
    return longest / sum(at_least(length) for length in lengths)


def over_static() -> list[str]:
    rows = [arm(name) for name in (STATIC, MIXED, BUCKETS, CONTINUOUS)]
    theirs = {
        name: median(run["output_tokens_per_s"] for run in raw("cpu/engine.json")["runs"][name])
        for name in ("continuous", "padded")
    }
    return [
        *(
            cell
            for each in rows
            for cell in (f"{throughput(each):.0f}", f"{goodput(each):.0f}", attained(each))
        ),
        times(longest_over_mean(8), 1),
        times(throughput(arm(CONTINUOUS)) / throughput(arm(STATIC))),
        times(theirs["continuous"] / theirs["padded"]),
    ]


def batch_sizes() -> list[str]:
    def row(each: Measures) -> list[str]:
        digits = 1 if p99_ms(each.e2e) > 10_000 else 2
        return [
            f"{goodput(each):.0f}",
            p99_s(each.e2e, digits),
            p99_s(each.ttft, digits),
            f"{p99_ms(each.itl):.0f} ms",
        ]

    default = [
        each
        for each in raw("tuning/figures.json")["scores"]
        if (each["workload"], each["arm"]) == ("H100 ITL 50: steady 0.5", "default 256/2048")
    ]
    shares = (
        middle(min(each["attainment"].values()) for each in default),
        middle(each["good"] / each["offered"] for each in default),
    )
    points = [*(at_batch(size) for size in (1, 4, 8, 16, 64)), tuner()]
    mean_s = known(at_batch(64).e2e.mean_ms.value) / 1e3
    return [
        *(cell for each in points for cell in row(each)),
        f"{mean_s:.2f}",
        f"{18 * mean_s:.0f}",
        *(f"{100 * share:.1f} %" for share in shares),
    ]


def bucketing() -> list[str]:
    mixed, buckets = padding(MIXED), padding(BUCKETS)
    return [
        *(percent(padding(name, load)) for load in (0.25, 0.5, 1.0) for name in (MIXED, BUCKETS)),
        percent(mixed),
        percent(buckets),
        times((1 - buckets) / (1 - mixed)),
        times(throughput(arm(BUCKETS)) / throughput(arm(MIXED))),
    ]


def kv_memory() -> list[str]:
    return [
        f"{value:,}"
        for config in (SMOLLM2_135M, LLAMA_8B)
        for value in (kv_bytes(config), 2 * config.num_layers * config.hidden_size * 2)
    ]


def paging() -> list[str]:
    def wasted(tokens: float) -> float:
        return (BLOCK - 1) / 2 / (tokens + (BLOCK - 1) / 2)

    tokens = known(arm(CONTINUOUS).prompt_tokens.value) + known(arm(CONTINUOUS).output_tokens.value)
    assert round(tokens) == 86
    return [
        f"{0.96 / 0.4:.1f} to {0.96 / 0.2:.1f} times",
        f"{100 * wasted(1000):.1f} %",
        percent(wasted(86)),
        f"{(BLOCK - 1) / 2 * 0.96 / 0.04:.0f} tokens",
        str(reserved(SMOLLM2_135M)),
        str(paged(SMOLLM2_135M, 1000)),
        str(paged(SMOLLM2_135M, 86)),
    ]


def acceptance() -> list[str]:
    cells = [f"{(1 - 0.84**9) / (1 - 0.84):.1f}"]
    by_row: dict[tuple[str, int], list[str]] = {}
    shown = [(text, load) for text in ("repetitive", "prose") for load in (1, 4, 16)]
    for text, load in shown:
        row = drafted(text, load)
        tokens = 2 * load * 64  # the benchmark answers two requests for each at a time
        a_step = tokens / (tokens - median(run["on"]["accepted"] for run in row["runs"]))
        cells += [
            percent(row["accepted"]),
            f"{a_step:.1f}",
            times(row["ratio"]),
            times(a_step / row["ratio"], 1),
        ]
        by_row[text, load] = cells[-4:]
    alone, prose = by_row["repetitive", 1], by_row["prose", 1]
    cells += [alone[2].removesuffix(" times"), by_row["repetitive", 16][2], *prose[:2]]
    runs = raw("cpu/peers.json")["runs"]
    for name in ("paceline", "openvino", "vllm"):
        pairs = zip(runs[f"{name}-lookup"], runs[name], strict=True)
        ratios = [on["output_tokens_per_s"] / off["output_tokens_per_s"] for on, off in pairs]
        cells.append(times(median(ratios)))
    return cells


def prefix_throughput() -> list[str]:
    rows = raw("cpu/prefix.json")
    (found,) = {each["found_tokens"] for each in rows}
    return [
        str(found),
        times(1024 / (1024 - found), 0),
        times(median(each["first_ms"] / each["second_ms"] for each in rows), 1),
        times(1 / (1 - 0.5 * found / 1024), 1),
    ]


def erlang_wait(servers: int, load: float) -> float:
    """Return the mean wait of M/M/c, in service times."""
    offered = servers * load
    full = offered**servers / math.factorial(servers) / (1 - load)
    partly = sum(offered**k / math.factorial(k) for k in range(servers))
    return full / (full + partly) / (servers * (1 - load))


def queueing() -> list[str]:
    def ttft_ms(load: float) -> float:
        return middle(
            each["figures"]["ttft_mean_ms"]
            for each in raw("order/order.json")
            if (each["case"], each["load"], each["order"])
            == ("conversation, H100", load, "arrival")
        )

    least = ttft_ms(0.6)
    served = throughput(at_batch(1)) / throughput(at_batch(64))
    return [
        f"{erlang_wait(1, 0.9):.0f}",
        f"{erlang_wait(8, 0.9):.2f}",
        *(f"{least:.0f} ms", "1.0", "1.0"),
        *(f"{ttft_ms(0.95):.0f} ms", f"{ttft_ms(0.95) / least:.1f}", f"{0.4 / 0.05:.1f}"),
        *(f"{ttft_ms(1.2):.0f} ms", f"{ttft_ms(1.2) / least:.1f}"),
        percent(served),
        p99_s(at_batch(1).ttft, 1),
    ]


def chunks_and_apart() -> list[str]:
    small, large = at_budget(64), at_budget(1024)
    return [
        times(goodput(small) / goodput(large)),
        times(throughput(small) / throughput(large)),
        f"{capacities()[2]} times",
    ]


EXPECTED = {
    "The words": words,
    "Static batching": static,
    "Dynamic batching": dynamic,
    "Continuous batching": continuous,
    "Chunked prefill": chunked,
    "Paged memory": memory,
    "Prefix caching": prefixes,
    "Speculation": speculation,
    "Lanes": lanes,
    "Backpressure": backpressure,
    "Prefill and decode apart": apart,
    "By kind of traffic": by_traffic,
    '"Continuous batching is 23 times as fast"': over_static,
    '"Larger batches cost latency"': batch_sizes,
    '"Bucketing removes the padding"': bucketing,
    "KV memory": kv_memory,
    '"Paging wastes less than 4 %, and serves 24 times as much"': paging,
    '"84 % accepted is nearly seven times as fast"': acceptance,
    '"Prefix caching is 6.4 times the throughput"': prefix_throughput,
    '"Keep utilisation below 80 %, or queues explode"': queueing,
    '"Chunked prefill is 5.6 times the capacity", "apart it is 7.4 times"': chunks_and_apart,
}


def test_the_small_model_is_the_one_that_the_simulator_knows() -> None:
    """It computes in float32 there."""
    assert 2 * kv_bytes(SMOLLM2_135M) == CPU_135M.size.kv_bytes_per_token


def test_every_section_with_figures_of_ours_is_checked() -> None:
    assert list(sections()) == list(EXPECTED)


@pytest.mark.parametrize("section", EXPECTED)
def test_the_figures_are_those_of_the_committed_results(section: str) -> None:
    assert sections()[section] == EXPECTED[section]()


def test_every_field_that_the_page_names_exists() -> None:
    """The table of fields in docs/crd.md is made from the types; a parent counts as well."""
    spans = re.findall(r"`([^`\n]+)`", PAGE.read_text())
    named = {found[0] for span in spans if (found := FIELD.match(span))}
    fields = re.findall(r"^\| `([\w.\[\]]+)` \|", (ROOT / "docs/crd.md").read_text(), re.MULTILINE)
    plain = {field.replace("[]", "") for field in fields}

    assert named
    assert {
        name
        for name in named
        if not any(field == name or field.startswith(f"{name}.") for field in plain)
    } == set()
