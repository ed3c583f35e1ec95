"""Requests as spans, received by a real collector over OTLP/HTTP."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from paceline_sidecar.tracing import names
from paceline_sidecar.tracing.export import BoundedProcessor
from paceline_sidecar.tracing.settings import TracingSettings
from paceline_sidecar.tracing.start import start_tracing
from paceline_testing.collector import Collector, attributes_of
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until

CHAT = "POST /v1/chat/completions"
COMPLETIONS = "POST /v1/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + "00"
_NONE = {"OTEL_TRACES_SAMPLER_ARG": "0"}
StartSidecar = Callable[..., Sidecar]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def start_traced(
    engine: ScriptedEngine,
    start: StartSidecar,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> StartSidecar:
    """Starts a sidecar whose environment asks for traces."""
    del engine

    def start_traced(*, environment: dict[str, str] | None = None, **changes: Any) -> Sidecar:
        asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "10"}
        for name, value in {**asked, **(environment or {})}.items():
            monkeypatch.setenv(name, value)
        tracing = start_tracing(TracingSettings(), service_name="chat")
        sidecar = start(tracing=tracing, **changes)
        wait_until(sidecar.ready)
        return sidecar

    return start_traced


@pytest.fixture
def traced(start_traced: StartSidecar) -> Sidecar:
    return start_traced()


def root_of(collector: Collector, name: str) -> Span:
    """Wait for the one span of this name: it is sent with its children or after them."""
    wait_until(lambda: collector.named(name))
    return collector.named(name)[0]


def children_of(collector: Collector, root: Span) -> dict[str, Span]:
    return {span.name: span for span in collector.spans if span.parent_span_id == root.span_id}


def test_a_stream_is_a_request_with_its_phases(collector: Collector, traced: Sidecar) -> None:
    """Queue, prefill and decode follow each other, all of the request's trace."""
    answer = traced.public.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 5,
            "temperature": 0.5,
            "stream": True,
        },
    )

    root = root_of(collector, CHAT)
    found, parts = attributes_of(root), children_of(collector, root)
    assert root.kind == Span.SPAN_KIND_SERVER
    assert not root.parent_span_id
    ids = f"00-{root.trace_id.hex()}-{root.span_id.hex()}-"
    assert answer.headers["traceresponse"].startswith(ids)
    assert parts.keys() == {names.QUEUE, names.PREFILL, names.DECODE, names.STREAM}
    queue, prefill, decode = (parts[each] for each in (names.QUEUE, names.PREFILL, names.DECODE))
    assert root.start_time_unix_nano == queue.start_time_unix_nano
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano
    assert decode.end_time_unix_nano <= root.end_time_unix_nano
    assert parts[names.STREAM].end_time_unix_nano == root.end_time_unix_nano
    assert [event.name for event in queue.events] == [names.HANDED_OVER]
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.model"] == "scripted"
    assert found["gen_ai.request.max_tokens"] == 5
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.request.stream"] is True
    assert found["gen_ai.usage.output_tokens"] == 5
    assert found["gen_ai.usage.input_tokens"] > 0
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert found["gen_ai.response.time_to_first_chunk"] == found["paceline.ttft_ms"] / 1e3
    assert found["paceline.lane"] == "interactive"
    assert found["paceline.outcome"] == "ok"
    assert found["paceline.request_id"] == answer.headers["x-request-id"]
    assert found["http.response.status_code"] == 200
    assert "error.type" not in found
    assert attributes_of(decode)["gen_ai.usage.output_tokens"] == 5


def test_every_attribute_is_one_that_the_page_names(
    collector: Collector, start_traced: StartSidecar, script: Script
) -> None:
    """And on the spans that it names, so that a query finds it."""
    script.cached_tokens = 1
    sidecar = start_traced()
    sidecar.openai.completions.create(model="scripted", prompt=["a", "b"], max_tokens=2)
    sidecar.public.post("/v1/completions", json={"prompt": "a", "stream": True})
    allowed = {(span, each.name) for each in names.ATTRIBUTES for span in each.spans}

    wait_until(lambda: len(collector.named(COMPLETIONS)) == 2)

    for span in collector.spans:
        kind = names.REQUEST if span.name == COMPLETIONS else span.name
        assert {(kind, name) for name in attributes_of(span)} <= allowed


def test_a_callers_trace_goes_on(collector: Collector, traced: Sidecar) -> None:
    """`traceparent` names the span above; its state is kept."""
    traced.public.post(
        "/v1/completions",
        json={"prompt": "Hi"},
        headers={"traceparent": PARENT, "tracestate": "vendor=1"},
    )

    root = root_of(collector, COMPLETIONS)
    assert root.trace_id.hex() == PARENT.split("-")[1]
    assert root.parent_span_id.hex() == PARENT.split("-")[2]
    assert root.trace_state == "vendor=1"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sidecar that leaves wait for its last spans, however busy the machine is."""
    monkeypatch.setattr("paceline_sidecar.tracing.tracer._FAREWELL_S", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("environment", "parent", "is_sampled"),
    [
        ({}, UNSAMPLED, False),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", **_NONE}, "", False),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", **_NONE}, PARENT, True),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", **_NONE}, PARENT, False),
        ({}, "00-not-a-context", True),
    ],
    ids=["parent says no", "ratio 0", "parent says yes", "ratio alone", "no context"],
)
def test_parents_and_ratios_sample(
    collector: Collector,
    start_traced: StartSidecar,
    environment: dict[str, str],
    parent: str,
    is_sampled: bool,
) -> None:
    """The header of the answer says which, and the caller's trace is named either way."""
    sidecar = start_traced(environment=environment)
    answer = sidecar.public.post(
        "/v1/completions", json={"prompt": "Hi"}, headers={"traceparent": parent} if parent else {}
    )
    # What waits is sent on leaving.
    sidecar.leave()
    sidecar.join()

    flags = int(answer.headers["traceresponse"].rpartition("-")[2], 16)
    assert flags % 2 == is_sampled
    assert bool(collector.spans) == is_sampled


def test_a_refusal_says_why(
    collector: Collector, traced: Sidecar, engine: ScriptedEngine, script: Script
) -> None:
    """A request that was refused on arrival has no phase, and its reason."""
    script.hold_after = 0
    state = traced.admin.get("/runtime/limits").json()
    patch = {
        "epoch": state["epoch"] + 1,
        "lease_s": 60,
        "admission": {"max_queued_requests": 1, "reject_at": 1.0},
    }
    assert traced.admin.patch("/runtime/limits", json=patch).status_code == 200
    body = {"prompt": "Hi"}
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(httpx.post, f"{traced.url}/v1/completions", json=body, timeout=30)
        wait_until(lambda: engine.running == 1)
        assert traced.public.post("/v1/completions", json=body).status_code == 429
        root = root_of(collector, COMPLETIONS)
        script.hold_after = None
        assert waiting.result().status_code == 200

    found = attributes_of(root)
    assert found["http.response.status_code"] == 429
    assert found["paceline.outcome"] == "refused"
    assert found["error.type"] == "queue_full"
    assert root.status.code == Status.STATUS_CODE_UNSET  # the caller's doing
    assert not children_of(collector, root)


def test_a_bad_request_says_so(collector: Collector, traced: Sidecar) -> None:
    """It was never offered to the engine."""
    with pytest.raises(openai.BadRequestError):
        traced.openai.completions.create(model="scripted", prompt="Hi", max_tokens=-1)

    found = attributes_of(root_of(collector, COMPLETIONS))
    assert found["paceline.outcome"] == "invalid"
    assert found["error.type"] == "InvalidRequest"


def test_a_stream_whose_client_left_ends_there(
    collector: Collector, traced: Sidecar, script: Script
) -> None:
    """Its decode ends where it was given up, with what had come."""
    script.hold_after = 2
    with traced.public.stream(
        "POST", "/v1/completions", json={"prompt": "Hi", "stream": True}
    ) as answer:
        next(answer.iter_raw())

    root = root_of(collector, COMPLETIONS)
    found, parts = attributes_of(root), children_of(collector, root)
    assert found["paceline.outcome"] == "cancelled"
    assert found["error.type"] == "ClientLeft"
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert attributes_of(parts[names.DECODE])["paceline.outcome"] == "cancelled"


def test_an_engine_that_gives_up_is_an_error(
    collector: Collector, traced: Sidecar, script: Script
) -> None:
    """The only trace of it that a client did not cause."""
    script.error = "out of luck"
    assert traced.public.post("/v1/completions", json={"prompt": "Hi"}).status_code >= 500

    root = root_of(collector, COMPLETIONS)
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert attributes_of(root)["error.type"] == "EngineFault"


def test_many_choices_have_few_spans(collector: Collector, traced: Sidecar) -> None:
    """Three spans each of a thousand choices would bury the others."""
    prompts = [str(number) for number in range(20)]
    traced.openai.completions.create(model="scripted", prompt=prompts, max_tokens=1)

    root = root_of(collector, COMPLETIONS)
    assert attributes_of(root)["gen_ai.request.choice.count"] == 20
    assert attributes_of(root)["gen_ai.usage.output_tokens"] == 20
    assert len(collector.named(names.DECODE)) == 16


def test_a_line_of_a_batch_is_a_trace_of_its_own(collector: Collector, traced: Sidecar) -> None:
    """It has no request, and the batch's is long over."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    url: Any = "/v1/chat/completions"
    lines = [
        {"custom_id": str(number), "method": "POST", "url": url, "body": body}
        for number in range(2)
    ]
    content = "".join(json.dumps(each) + "\n" for each in lines).encode()
    file = traced.openai.files.create(file=("requests.jsonl", content), purpose="batch")
    batch = traced.openai.batches.create(
        input_file_id=file.id, endpoint=url, completion_window="24h"
    )
    name = names.LINE.format(path=url)

    wait_until(lambda: len(collector.named(name)) == 2)

    for root in collector.named(name):
        found = attributes_of(root)
        assert found["paceline.batch_id"] == batch.id
        assert found["paceline.lane"] == "batch"
        assert found["gen_ai.usage.output_tokens"] == 2
        assert children_of(collector, root).keys() == {names.QUEUE, names.PREFILL, names.DECODE}


def test_a_collector_is_told_who_speaks(collector: Collector, start_traced: StartSidecar) -> None:
    """By the standard variables, headers and compression too."""
    sidecar = start_traced(
        environment={
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20abc",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        }
    )
    sidecar.public.post("/v1/completions", json={"prompt": "Hi"})

    root_of(collector, COMPLETIONS)
    assert collector.resources[0]["service.name"] == "chat"
    assert collector.resources[0]["deployment.environment.name"] == "test"
    assert collector.headers[0]["authorization"] == "Basic abc"


def test_nothing_of_a_prompt_or_an_answer_is_sent(collector: Collector, traced: Sidecar) -> None:
    """Traces go where many may look."""
    traced.public.post("/v1/completions", json={"prompt": "a secret plan"})
    root_of(collector, COMPLETIONS)

    told = b"".join(span.SerializeToString() for span in collector.spans)
    assert b"secret" not in told
    assert b"Hello" not in told


def test_probes_have_no_trace(collector: Collector, traced: Sidecar) -> None:
    """They come every few seconds and say nothing of a request."""
    assert "traceresponse" not in traced.public.get("/health/live").headers
    traced.public.post("/v1/completions", json={"prompt": "Hi"})

    root_of(collector, COMPLETIONS)
    assert {span.name for span in collector.spans if not span.parent_span_id} == {COMPLETIONS}


def spans_by_result(sidecar: Sidecar) -> dict[str, float]:
    lines = sidecar.admin.get("/metrics").text.splitlines()
    rows = [line for line in lines if line.startswith("paceline_trace_spans_total{")]
    return {row.split('result="')[1].split('"')[0]: float(row.rsplit(" ", 1)[1]) for row in rows}


def test_a_dead_collector_costs_spans_and_no_request(
    collector: Collector, start_traced: StartSidecar
) -> None:
    """Requests are answered, what finds no room is dropped, and the counter says so."""
    collector.answers = 400
    sidecar = start_traced(
        environment={
            "OTEL_BSP_MAX_QUEUE_SIZE": "4",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
    )
    for _ in range(3):
        body = {"prompt": [str(number) for number in range(8)], "max_tokens": 1}
        assert sidecar.public.post("/v1/completions", json=body).status_code == 200

    wait_until(lambda: spans_by_result(sidecar)["failed"] >= 4)
    found = spans_by_result(sidecar)
    assert found["exported"] == 0
    assert found["dropped"] >= 1
    assert sum(found.values()) <= 3 * 25


def test_a_collector_that_never_answers_delays_no_exit(
    collector: Collector, start_traced: StartSidecar
) -> None:
    """The exporter would try again for ten seconds."""
    collector.answers = 503
    sidecar = start_traced(environment={"OTEL_BSP_SCHEDULE_DELAY": "100"})
    sidecar.public.post("/v1/completions", json={"prompt": "Hi"})
    wait_until(lambda: collector.asked)

    sidecar.leave()
    sidecar.join()


def test_spans_that_are_sent_after_the_loop_has_closed_trouble_nobody(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that sends them outlives the wait for it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setattr("paceline_sidecar.tracing.tracer._FAREWELL_S", 0.0)
    is_over = threading.Event()
    monkeypatch.setattr(BoundedProcessor, "shutdown", lambda _: is_over.wait())
    tracing = start_tracing(TracingSettings(), service_name="chat")

    assert tracing is not None
    asyncio.run(tracing.close())
    (sending,) = (each for each in threading.enumerate() if each.name == "last spans")
    is_over.set()
    sending.join()


@pytest.mark.usefixtures("patient")
def test_what_waits_is_sent_on_leaving(collector: Collector, start_traced: StartSidecar) -> None:
    """The last requests before an upgrade are those that people ask about."""
    sidecar = start_traced(environment={"OTEL_BSP_SCHEDULE_DELAY": "3600000"})
    sidecar.public.post("/v1/completions", json={"prompt": "Hi"})
    assert not collector.spans

    sidecar.leave()
    sidecar.join()

    assert collector.named(COMPLETIONS)


@pytest.mark.parametrize(
    ("environment", "is_asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_the_environment_asks(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_asked: bool
) -> None:
    """By the variables that every SDK reads."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert TracingSettings().is_asked == is_asked


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "it must be http/protobuf, got grpc"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9999", "at most OTEL_BSP_MAX_QUEUE_SIZE (2048)"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "should be a valid integer"),
    ],
)
def test_a_wrong_variable_is_named_at_start(variable: str, value: str, told: str) -> None:
    """With its rule, as the process's own settings are."""
    environment = {
        "OTEL_TRACES_EXPORTER": "otlp",
        variable: value,
        "PYTHONPATH": ":".join(sys.path),
    }
    command = [sys.executable, "-m", "paceline_sidecar"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith(f"{variable}: ")
    assert told in done.stderr


def test_the_sdk_is_imported_where_it_is_asked_for_alone() -> None:
    """It takes memory and time at start, of every pod; the bare API is FastAPI's."""
    script = "import paceline_sidecar.__main__, sys; print(*sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )

    imported = set(done.stdout.split())
    assert not {"opentelemetry.sdk", "google.protobuf", "requests"} & imported
