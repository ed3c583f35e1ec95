"""A small model, a large one, and both in turn by confidence: each arm measured by itself.

The two services are those of `examples/pipelines/cascade.yaml`, each a `paceline up`; in front of
them Envoy Gateway with the example's routes chooses by the header, as it does in a cluster.
"""

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from openai import OpenAI

from local_cluster.envoy_gateway import envoy_gateway, host_class
from paceline_api.labels import Manifest
from paceline_api.tuning_spec import tuning_spec
from paceline_cli.manifest import read
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_testing.examples import documents_of, services_of
from paceline_testing.free_port import free_port
from paceline_testing.gateway_objects import on_loopback
from paceline_tuner.service_report import Throughput
from paceline_tuner.throughput import token_cost
from pipeline_cells import LEGEND, mean, quantile, share
from resized_model import write_with_layers
from tuned_service import alone, tuned_service
from worded_questions import OF_KNOWLEDGE, Worded, worded

LARGE_TIMES = 3
THRESHOLD = 0.6
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 1.0)
SIZES: tuple[str, ...] = ("small", "large")
NUM_WARMUP = 4
Figures = dict[str, Any]


def cascade(num_questions: int) -> Figures:
    """Ask every question of the small model, of the large one, and of the cascade."""
    questions = worded(OF_KNOWLEDGE, num_questions)
    with both_behind_a_gateway() as (clients, prices):
        arms = {f"{size} alone": {size: client} for size, client in clients.items()}
        rows: dict[str, list[Figures]] = {}
        for name, those in (arms | {"cascade": clients}).items():
            for question in questions[:NUM_WARMUP]:
                asked(those, question)
            rows[name] = [asked(those, question) for question in questions]
    return {
        "arms": rows,
        "prices": prices,
        "threshold": THRESHOLD,
        "large_times": LARGE_TIMES,
        "num_questions": len({question for question, _ in OF_KNOWLEDGE[:num_questions]}),
    }


@contextmanager
def both_behind_a_gateway() -> Iterator[tuple[dict[str, OpenAI], dict[str, float]]]:
    """Serve both; give a client of each size, and each pod's price an hour."""
    import cascade as example  # noqa: PLC0415 - a script, on the path since `main`

    with tempfile.TemporaryDirectory(prefix="pl-") as name, ExitStack() as stack:
        folder = Path(name)
        (model := folder / "large").mkdir()
        write_large(model)
        (gateway := folder / "gateway").mkdir()
        services: dict[str, Manifest] = dict(
            zip(SIZES, services_of("pipelines/cascade.yaml"), strict=True)
        )
        services["large"]["spec"]["model"]["uri"] = f"file://{model}"
        manifests = {size: alone(service, folder) for size, service in services.items()}
        ports = {
            services[size]["metadata"]["name"]: [
                urlsplit(stack.enter_context(tuned_service(manifest, folder))).port or 0
            ]
            for size, manifest in manifests.items()
        }
        port = free_port()
        routes = on_loopback(documents_of("pipelines/routes.yaml"), ports, port)
        stack.enter_context(envoy_gateway(gateway, [*host_class("envoy"), *routes], port))
        url = f"http://127.0.0.1:{port}/v1"
        yield (
            {size: example.of_size(url, size) for size in SIZES},
            {size: price_of(manifest) for size, manifest in manifests.items()},
        )


def write_large(folder: Path) -> None:
    """Write the embedded model with LARGE_TIMES its layers."""
    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    checkpoint = open_checkpoint(locate("builtin://smollm2-135m-instruct", None, places).path)
    write_with_layers(checkpoint, LARGE_TIMES * checkpoint.config.num_layers, folder)


def price_of(manifest: Path) -> float:
    """Return what a service's pod is declared to cost an hour."""
    price = tuning_spec(read(manifest).spec).price_per_hour
    if price is None:
        raise ValueError(f"{manifest} declares no resources.pricePerHour")
    return price


def asked(clients: Mapping[str, OpenAI], question: Worded[str]) -> Figures:
    """Ask one model after the other until one is sure enough, or is the last.

    The row has milliseconds by the size of the model, and what the last one said.
    """
    import cascade as example  # noqa: PLC0415 - as above

    took_ms: dict[str, float] = {}
    answers: dict[str, example.Answer] = {}
    for size, client in clients.items():
        began = time.perf_counter()
        answers[size] = example.ask(client, question.text)
        took_ms[size] = 1e3 * (time.perf_counter() - began)
        if answers[size].confidence >= THRESHOLD:
            break
    final = list(answers.values())[-1]
    return {
        "question": question.text,
        "answer": final.text,
        "tokens": final.num_tokens,
        "is_right": re.search(question.known, final.text, re.IGNORECASE) is not None,
        "confidence": {size: answer.confidence for size, answer in answers.items()},
        "ms": took_ms,
    }


def cascade_section(kept: Figures) -> str:
    """Write two tables: each arm's times and costs, and how many answers each threshold keeps."""
    arms, prices = kept["arms"], kept["prices"]
    small = arms["small alone"]
    priced = " and ".join(f"{price:g} for the {size} one" for size, price in prices.items())
    lines = [
        (
            f"## Small, then large\n\n{kept['machine']}; {len(small)} requests an arm, which are"
            f" {kept['num_questions']} questions in different wordings, one at a time through Envoy"
            " Gateway, whose routes choose the model by a header. Each arm was run by itself, the"
            f" cascade at a threshold of {kept['threshold']:g}. The large model is the small one"
            f" with {kept['large_times']} times its layers, which add nothing: what it costs is"
            " real, what it says is what the small one says, so nothing follows here about its"
            f" answers. The declared price of a pod is {priced} an hour. The cost of a million"
            " output tokens counts the tokens of the answers that were given in the end: once for"
            " the time in which a pod was asked, as where other requests fill the rest, and once"
            f" for all the time in which the arm's pods were up. {LEGEND}\n"
        ),
        (
            "| Arm | requests | right | asked of the large | p50 | p99 | mean | cost while asked |"
            " cost while up |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in arms.items():
        times = [sum(row["ms"].values()) for row in rows]
        lines.append(
            f"| {name} | {len(rows)} | {share(row['is_right'] for row in rows)} |"
            f" {share('large' in row['ms'] for row in rows)} | {quantile(times, 0.5)} |"
            f" {quantile(times, 0.99)} | {mean(times)} | {cost(rows, busy_price(rows, prices))} |"
            f" {cost(rows, up_price(rows, prices))} |"
        )
    lines += [
        "\nWhat a threshold keeps, by the answers of the small model alone:\n",
        "| Threshold | the small keeps | right of those |",
        "|---|---|---|",
    ]
    for threshold in THRESHOLDS:
        sure = [row for row in small if row["confidence"]["small"] >= threshold]
        lines.append(
            f"| {threshold:.1f} | {len(sure)} of {len(small)} |"
            f" {share(row['is_right'] for row in sure)} |"
        )
    return "\n".join(lines) + "\n"


def cost(rows: Sequence[Figures], price_per_hour: float) -> str:
    """Write the cost of a million output tokens as the status of a service has it."""
    seconds = _seconds(rows)
    given = Throughput(
        output_tps=sum(row["tokens"] for row in rows) / seconds,
        prompt_tps=0.0,
        finished_rps=len(rows) / seconds,
    )
    found = token_cost(given, price_per_hour=price_per_hour)
    return "-" if found is None else f"{found.per_million_output:.2f}"


def busy_price(rows: Sequence[Figures], prices: Mapping[str, float]) -> float:
    """Return the price an hour of the pods for the shares of the time in which they were asked."""
    spent = sum(prices[size] * ms / 1e3 for row in rows for size, ms in row["ms"].items())
    return float(spent) / _seconds(rows)


def up_price(rows: Sequence[Figures], prices: Mapping[str, float]) -> float:
    """Return the price an hour of every pod that the arm asks at all."""
    asked_sizes = {size for row in rows for size in row["ms"]}
    return sum(price for size, price in prices.items() if size in asked_sizes)


def _seconds(rows: Sequence[Figures]) -> float:
    return float(sum(ms for row in rows for ms in row["ms"].values())) / 1e3
