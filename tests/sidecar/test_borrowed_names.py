"""What is written for vLLM's metrics finds them in a scrape, with the labels that it reads."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine, a_step
from paceline_testing.waiting import wait_until

# What the queries of examples/observability/prometheus_grafana/grafana.json of vLLM select, without
# the functions around it; $model_name is the only variable, from label_values(model_name).
DASHBOARD = """
    vllm:e2e_request_latency_seconds_bucket by(le)
    vllm:e2e_request_latency_seconds_sum
    vllm:e2e_request_latency_seconds_count
    vllm:prompt_tokens_total
    vllm:generation_tokens_total
    vllm:inter_token_latency_seconds_bucket by(le)
    vllm:inter_token_latency_seconds_sum
    vllm:inter_token_latency_seconds_count
    vllm:num_requests_running
    vllm:num_requests_waiting
    vllm:time_to_first_token_seconds_bucket by(le)
    vllm:time_to_first_token_seconds_sum
    vllm:time_to_first_token_seconds_count
    vllm:kv_cache_usage_perc
    vllm:request_prompt_tokens_bucket by(le)
    vllm:request_generation_tokens_bucket by(le)
    vllm:request_success_total by(finished_reason)
    vllm:request_queue_time_seconds_sum
    vllm:request_prefill_time_seconds_sum
    vllm:request_decode_time_seconds_sum
    vllm:request_max_num_generation_tokens_sum
"""
QUERIES = [line.strip() for line in DASHBOARD.splitlines() if line.strip()]

# What an endpoint picker reads of a pod that says nothing else of itself, and of which labels:
# docs/proposals/003-model-server-protocol of kubernetes-sigs/gateway-api-inference-extension v1.6.0
# and, in its last version with a whole picker (v1.5.0; now llm-d-router), the engine "vllm" in
# pkg/epp/framework/plugins/datalayer/extractor/metrics/factories.go.
PICKER = {
    "vllm:num_requests_waiting": set[str](),
    "vllm:num_requests_running": set[str](),
    "vllm:kv_cache_usage_perc": set[str](),
    "vllm:cache_config_info": {"block_size", "num_gpu_blocks"},
    "vllm:lora_requests_info": {"max_lora", "running_lora_adapters", "waiting_lora_adapters"},
}


@pytest.fixture
def script() -> Script:
    return Script(steps=[a_step(decode=4, prefill=100)])


def scrape(sidecar: Sidecar) -> dict[str, list[Sample]]:
    """Samples by the name that a query uses."""
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(sidecar.public.get("/metrics").text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def value(sidecar: Sidecar, name: str, **labels: str) -> float:
    found = scrape(sidecar).get(name, [])
    return sum(each.value for each in found if labels.items() <= each.labels.items())


@pytest.fixture
def used(sidecar: Sidecar) -> Sidecar:
    """One that has answered: a query of a histogram without observations finds nothing to show."""
    sidecar.openai.completions.create(model="scripted", prompt="Hi", max_tokens=5)
    wait_until(lambda: "vllm:num_requests_running" in scrape(sidecar))
    return sidecar


@pytest.mark.parametrize("query", QUERIES)
def test_vllms_dashboard_finds_what_it_asks_for(used: Sidecar, query: str) -> None:
    """By the name, the model and the label that it groups by."""
    name, _, grouping = query.partition(" ")
    grouped = re.findall(r"by\((\w+)\)", grouping)

    found = [s for s in scrape(used).get(name, []) if s.labels.get("model_name") == "scripted"]

    assert found
    assert all(label in sample.labels for sample in found for label in grouped)


@pytest.mark.parametrize("name", [q.split()[0] for q in QUERIES if q.split()[0].endswith("_count")])
def test_what_it_divides_by_counts_the_requests(used: Sidecar, name: str) -> None:
    """A mean is a sum over a count: neither may be 0 after a request."""
    assert value(used, name) > 0


@pytest.mark.parametrize("name", PICKER)
def test_an_endpoint_picker_reads_one_number_or_its_labels(used: Sidecar, name: str) -> None:
    """It takes the newest series of a name; there is one of each."""
    (found,) = scrape(used)[name]

    assert PICKER[name] <= found.labels.keys()
    for label in PICKER[name] & {"block_size", "num_gpu_blocks", "max_lora"}:
        assert int(found.labels[label]) > 0


@pytest.mark.parametrize("name", PICKER)
def test_an_endpoint_picker_finds_a_gauge(used: Sidecar, name: str) -> None:
    """Of other types than gauges and counters it takes no value."""
    assert f"# TYPE {name} gauge" in used.public.get("/metrics").text.splitlines()


def loras(sidecar: Sidecar) -> Sample:
    (found,) = scrape(sidecar)["vllm:lora_requests_info"]
    return found


def test_the_adapters_of_requests_are_named(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Separated by commas, as the picker splits them, and gone with the requests."""
    for name in ("b", "a"):
        body = {"lora_name": name, "lora_path": "/adapters/x"}
        assert sidecar.admin.post("/v1/load_lora_adapter", json=body).status_code == 200
    engine.script.hold_after = 1
    streams = [
        sidecar.openai.completions.create(model=name, prompt="Hi", stream=True)
        for name in ("b", "a", "scripted")
    ]
    wait_until(lambda: loras(sidecar).labels["running_lora_adapters"] == "a,b")
    assert loras(sidecar).labels["waiting_lora_adapters"] == ""

    for stream in streams:
        stream.close()

    wait_until(lambda: loras(sidecar).labels["running_lora_adapters"] == "")


def test_speculation_is_counted_by_position(used: Sidecar) -> None:
    """The acceptance rate, its length and its rate by place can all be derived."""
    assert value(used, "vllm:spec_decode_num_drafts_total") == 4
    assert value(used, "vllm:spec_decode_num_draft_tokens_total") == 12
    assert value(used, "vllm:spec_decode_num_accepted_tokens_total") == 6
    by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [value(used, by_position, position=str(place)) for place in range(3)] == [4, 2, 0]


def test_the_longest_choice_is_observed_once_a_prompt(sidecar: Sidecar) -> None:
    """`n` and the longest choice belong together."""
    sidecar.openai.completions.create(model="scripted", prompt=["a", "b"], n=3, max_tokens=5)

    assert value(sidecar, "vllm:request_max_num_generation_tokens_count") == 2
    assert value(sidecar, "vllm:request_max_num_generation_tokens_sum") == 2 * 5
    assert value(sidecar, "vllm:request_params_n_sum") == 2 * 3
    assert value(sidecar, "vllm:request_generation_tokens_count") == 2 * 3


def test_a_request_of_one_token_counts_among_the_times_per_token(sidecar: Sidecar) -> None:
    """With 0, as there: both counts of requests agree."""
    sidecar.openai.completions.create(model="scripted", prompt="Hi", max_tokens=1)

    assert value(sidecar, "vllm:request_time_per_output_token_seconds_count") == 1
    assert value(sidecar, "vllm:e2e_request_latency_seconds_count") == 1
