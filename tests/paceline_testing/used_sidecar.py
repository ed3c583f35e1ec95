"""A sidecar that has done everything, so that each of its metrics has something to say."""

import socket
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine
from paceline_testing.waiting import wait_until


def scrape(sidecar: Sidecar) -> dict[str, list[Sample]]:
    """Samples by the name that a query uses."""
    text = sidecar.public.get("/metrics").text
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def value(sidecar: Sidecar, name: str, **labels: str) -> float:
    """The sum over all samples with these labels."""
    found = [
        sample.value
        for sample in scrape(sidecar).get(name, [])
        if labels.items() <= sample.labels.items()
    ]
    return sum(found)


def use_everything(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Every metric has something to say: served, cut by a stop string, refused, a stranger."""
    patch = {
        "epoch": 2,
        "lease_s": 60,
        "step_target_ms": 40,
        "sla": {
            "ttft_p99_ms": 30_000,
            "tpot_p99_ms": 4_400,
            "itl_p99_ms": 5_500,
            "e2e_p99_ms": 60_000,
        },
        "batch_sla": {
            "ttft_by_prompt_tokens": [
                {"up_to": 2000, "ttft_p99_ms": 30_000},
                {"ttft_p99_ms": 60_000},
            ],
            "tpot_p99_ms": 400,
            "itl_p99_ms": 900,
            "e2e_p99_ms": 90_000,
        },
        "batch_step_target_ms": 300,
    }
    assert sidecar.admin.patch("/runtime/limits", json=patch).status_code == 200
    client = sidecar.openai
    client.completions.create(model="scripted", prompt="Hi")
    client.completions.create(model="scripted", prompt="Hi", stop="lo")
    full = {"epoch": 3, "lease_s": 60, "admission": {"max_queued_requests": 1}}
    assert sidecar.admin.patch("/runtime/limits", json=full).status_code == 200
    engine.script.hold_after = 0
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.completions.create, model="scripted", prompt="Hi", stop="lo")
        wait_until(lambda: engine.running == 1)
        body = {"model": "scripted", "prompt": ["a", "b"]}
        assert sidecar.public.post("/v1/completions", json=body).status_code == 429
        engine.script.hold_after = None
        first.result(timeout=30)
    with socket.create_connection(("127.0.0.1", sidecar.settings.port)) as stranger:
        stranger.sendall(b"What is this?\r\n\r\n")
        assert stranger.recv(65536).startswith(b"HTTP/1.1 400")
    wait_until(lambda: value(sidecar, "paceline_step_seconds_count") > 0)
