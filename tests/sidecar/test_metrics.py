"""/metrics: what is declared, and so on the page, is what a scrape gives."""

import re
from collections.abc import Callable

import msgspec
import pytest
from prometheus_client.samples import Sample

from paceline_sidecar.metrics.names import KEY_REQUESTS, KEY_TOKENS, PACELINE, VLLM, Metric
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine, a_step, an_engine_load
from paceline_testing.used_sidecar import scrape, use_everything, value
from paceline_testing.waiting import wait_until
from paceline_wire import EngineLoad


@pytest.fixture
def script() -> Script:
    return Script(steps=[a_step(decode=4, prefill=100)])


def test_exactly_what_is_declared_is_exposed(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Name and labels of every metric, on a sidecar that has done everything."""
    use_everything(sidecar, engine)

    samples = scrape(sidecar)
    for metric in (*PACELINE, *VLLM.values()):
        if metric not in {KEY_REQUESTS, KEY_TOKENS}:  # where keys are asked for (test_keys.py)
            assert_exposed(metric, samples)
    known = {metric.exposed for metric in (*PACELINE, *VLLM.values())}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in samples} <= known


def assert_exposed(metric: Metric, samples: dict[str, list[Sample]]) -> None:
    name = f"{metric.exposed}_bucket" if metric.kind == "histogram" else metric.exposed
    assert name in samples, name
    for sample in samples[name]:
        assert set(sample.labels) - {"le"} == set(metric.labels), name


def test_attainment_counts_misses_by_reason(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """A refused request was offered: it is a miss, not a hole in the statistics."""
    use_everything(sidecar, engine)

    assert value(sidecar, "paceline_sla_requests_total", result="met") == 3
    assert value(sidecar, "paceline_sla_requests_total", result="missed", reason="refused") == 2
    assert value(sidecar, "paceline_refusals_total", reason="queue_full") == 2
    assert value(sidecar, "paceline_requests_total", outcome="ok", lane="interactive") == 3
    assert value(sidecar, "paceline_aborts_total", cause="stop_string") == 2
    assert value(sidecar, "paceline_limit_changes_total", knob="step_target_ms") == 1
    assert value(sidecar, "vllm:request_success_total", finished_reason="stop") == 3


def test_steps_are_counted_by_their_sequences(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Mixed steps apart from those that only decode, and from those of prompts alone."""
    count = "paceline_step_sequences_count"
    wait_until(lambda: value(sidecar, count) == 1)  # the script's own: four decodes and a prompt
    engine.script.steps = [
        a_step(2, decode=3, wall_ms=20),
        a_step(3, decode=4, wall_ms=30),
        a_step(4, decode=0, prefill=100, wall_ms=80),
        a_step(5, decode=700, wall_ms=250),
    ]
    wait_until(lambda: value(sidecar, count) == 5)

    def row(sequences: str, kind: str) -> tuple[float, float]:
        labels = {"sequences": sequences, "kind": kind}
        return (
            value(sidecar, "paceline_steps_total", **labels),
            value(sidecar, "paceline_steps_seconds_total", **labels),
        )

    assert row("4", "decode") == pytest.approx((2, 0.05))
    assert row("4", "mixed") == pytest.approx((1, 0.01))
    assert row("0", "prompt") == pytest.approx((1, 0.08))
    assert row("inf", "decode") == pytest.approx((1, 0.25))
    assert row("8", "decode") == (0, 0)
    at_most = {
        edge: value(sidecar, "paceline_step_sequences_bucket", le=edge)
        for edge in ("0.0", "3.0", "4.0", "512.0", "1024.0")
    }
    assert at_most == {"0.0": 1, "3.0": 2, "4.0": 4, "512.0": 4, "1024.0": 5}


def test_a_declared_target_is_a_bucket_edge(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """So a rate at the target is exact, whatever the target."""
    use_everything(sidecar, engine)

    edges = {sample.labels["le"] for sample in scrape(sidecar)["paceline_tpot_seconds_bucket"]}
    assert "4.4" in edges
    assert value(sidecar, "paceline_sla_target_seconds", metric="tpot") == 4.4


def test_engine_up_falls_and_its_gauges_go_with_the_engine(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """A gauge of a dead engine would be a lie."""
    wait_until(lambda: "paceline_running_requests" in scrape(sidecar))
    assert value(sidecar, "paceline_engine_up") == 1

    engine.stop()

    wait_until(lambda: not sidecar.ready())
    assert value(sidecar, "paceline_engine_up") == 0
    assert "paceline_running_requests" not in scrape(sidecar)
    assert "paceline_limit_effective" not in scrape(sidecar)


def test_sequences_that_fit_paged_stand_beside_preallocated_ones(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Two sequences hold 3 of 256 blocks of 16 tokens; the longest would hold 32."""
    name = "paceline_kv_sequences"
    wait_until(lambda: name in scrape(sidecar))
    assert [sample.labels["allocation"] for sample in scrape(sidecar)[name]] == ["preallocated"]

    engine.script.load = an_engine_load(running=2)

    wait_until(lambda: len(scrape(sidecar)[name]) == 2)
    assert value(sidecar, name, allocation="paged") == 256 * 2 // 3
    assert value(sidecar, name, allocation="preallocated") == 256 // 32


def test_steps_that_the_batch_lane_left_out_are_counted(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """As the engine counts them: nothing of a pause shows in what the steps computed."""
    name = "paceline_batch_lane_paused_steps_total"
    wait_until(lambda: name in scrape(sidecar))
    assert value(sidecar, name) == 0

    engine.script.load = msgspec.structs.replace(an_engine_load(), batch_lane_paused_steps=7)

    wait_until(lambda: value(sidecar, name) == 7)


def test_an_engine_of_an_older_version_has_left_out_none() -> None:
    """While its pod is replaced an engine may not know the field; a newer one may know others."""
    told = msgspec.to_builtins(an_engine_load())
    del told["batch_lane_paused_steps"]

    load = msgspec.convert(told | {"of_a_later_version": 1}, EngineLoad)

    assert load.batch_lane_paused_steps == 0


@pytest.mark.usefixtures("engine")
def test_the_vllm_family_can_be_switched_off(start: Callable[..., Sidecar]) -> None:
    """Where both would be stored for nothing."""
    sidecar = start(vllm_metrics=False)
    wait_until(sidecar.ready)

    assert not any(name.startswith("vllm:") for name in scrape(sidecar))
    assert "paceline_engine_up" in scrape(sidecar)


def test_both_ports_are_scraped_alike(sidecar: Sidecar) -> None:
    """A PodMonitor takes the admin port, an endpoint picker the public one."""
    assert "paceline_ready" in sidecar.admin.get("/metrics").text
    openmetrics = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = sidecar.public.get("/metrics", headers=openmetrics)
    assert answer.text.endswith("# EOF\n")


def test_vllms_prompt_tokens_are_those_of_all_sources(sidecar: Sidecar) -> None:
    """As in vLLM: tokens that were found in the cache count, too."""
    wait_until(lambda: value(sidecar, "vllm:prompt_tokens_total") > 0)

    assert value(sidecar, "vllm:prompt_tokens_total") == 100 + 10
    assert value(sidecar, "vllm:prompt_tokens_by_source_total") == 100 + 10
    assert value(sidecar, "paceline_prompt_tokens_total") == 100
