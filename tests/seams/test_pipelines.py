"""The example pipelines, run as a person runs them, against the embedded model."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from offline_file import PROMPTS, WARMUP_S, lasting
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import OfferedLoad, plan
from paceline_testing.examples import documents_of, services_of
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.whole_service import embedded_service
from pipelines import HEAD, with_section
from worded_questions import OF_KNOWLEDGE, OF_PASSAGES, worded

PIPELINES = Path(__file__).parents[2] / "examples" / "pipelines"
PASSAGES = PIPELINES / "passages.txt"
REQUESTS = PIPELINES / "requests.jsonl"


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """Stands in for every service of a pipeline."""
    with embedded_service(batch_dir=tmp_path_factory.mktemp("volume")) as sidecar:
        yield sidecar


def run(script: str, *arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PIPELINES / script, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_an_answer_comes_from_the_passage_that_has_it(sidecar: Sidecar) -> None:
    url = f"{sidecar.url}/v1"
    services = ("--embed", url, "--rank", url, "--generate", url)

    ended = run("retrieve.py", *services, PASSAGES, "When is the museum of clocks closed?")

    assert ended.returncode == 0, ended.stderr
    best, second, *answer, spans = ended.stdout.splitlines()
    passages = PASSAGES.read_text().splitlines()
    assert best.removeprefix("passage: ") == passages[1]
    assert second.removeprefix("passage: ") in {*passages} - {passages[1]}
    assert "Monday" in " ".join(answer)
    assert [span.split()[0] for span in spans.split(", ")] == ["embed", "rank", "generate"]


@pytest.mark.parametrize(("threshold", "asked", "num_kept"), [(0.0, "small", 2), (1.1, "large", 0)])
def test_a_cascade_asks_the_large_model_below_the_threshold(
    sidecar: Sidecar, threshold: float, asked: str, num_kept: int
) -> None:
    """One service stands for the gateway; tests/e2e/test_cascade_routes.py has a real one."""
    url = f"{sidecar.url}/v1"
    questions = "What is the capital of France?\nWhat is water made of?\n"

    ended = run("cascade.py", "--gateway", url, "--threshold", threshold, stdin=questions)

    assert ended.returncode == 0, ended.stderr
    answers = [line.split() for line in ended.stdout.splitlines() if line.endswith("?")]
    assert [answer[0] for answer in answers] == [asked, asked]
    assert all(0 < float(answer[1]) <= 1 for answer in answers)
    assert ended.stdout.splitlines()[-1] == f"{num_kept} of 2 answered by the small model"


def test_the_routes_lead_from_the_gateway_of_the_examples_to_the_cascades_services() -> None:
    """By names alone; each route has its service's label, for the operator's policy."""
    (gateway,) = (
        each for each in documents_of("gateway/gateway.yaml") if "listeners" in each["spec"]
    )
    services = services_of("pipelines/cascade.yaml")
    routes = documents_of("pipelines/routes.yaml")

    for route, service in zip(routes, services, strict=True):
        name = service["metadata"]["name"]
        (rule,) = route["spec"]["rules"]
        assert route["spec"]["parentRefs"] == [{"name": gateway["metadata"]["name"]}]
        assert route["metadata"]["labels"] == {"serving.paceline.dev/service": name}
        assert rule["backendRefs"] == [{"name": name, "port": 8000}]
        assert service["spec"]["api"]["gateway"] == "EnvoyGateway"


def test_each_service_of_the_retrieval_has_its_own_batching_and_targets() -> None:
    services = [each["spec"] for each in services_of("pipelines/retrieval.yaml")]

    batching = [(each["tuning"]["batchSize"], each["tuning"]["tokenBudget"]) for each in services]
    targets = [each["sla"] for each in services]

    assert all(one != other for one, other in combinations(batching, 2))
    assert all(one != other for one, other in combinations(targets, 2))


def test_no_prompt_of_a_measurement_is_asked_twice() -> None:
    """Else the prefix cache would answer for the model."""
    for questions in (OF_KNOWLEDGE, OF_PASSAGES):
        asked = [each.text for each in worded(questions, 408)]

        assert len(set(asked)) == 408
        assert {text for text, _ in questions} <= set(asked)


def test_a_measurement_replaces_its_own_section_of_the_results_alone() -> None:
    sections = ["## Small, then large\n\n| old |\n", "## A file\n\n| kept |\n"]
    page = "".join([HEAD, *sections])

    replaced = with_section(page, "## Small, then large\n\n| new |\n")
    added = with_section(replaced, "## Another\n\n| more |\n")

    assert replaced == f"{HEAD}## Small, then large\n\n| new |\n\n{sections[1]}"
    assert added == f"{replaced}\n## Another\n\n| more |\n"


def test_people_ask_long_enough_for_their_p99() -> None:
    """The requests of the warm-up do not count."""
    people = OfferedLoad(2.0, cv=1.0, prompt_tokens=PROMPTS, output_tokens=PROMPTS)
    planned = plan(people, help_topics(), duration_s=600.0, seed=1)

    least_s = lasting(planned, 408)

    after = [each for each in planned if WARMUP_S <= each.at_s < WARMUP_S + least_s]
    assert len(after) == 408


def test_a_file_of_requests_is_answered_once(sidecar: Sidecar, tmp_path: Path) -> None:
    """A job whose pod is started again finds the batch that the first one began."""
    requests = tmp_path / REQUESTS.name
    shutil.copy(REQUESTS, requests)
    job = ("--url", f"{sidecar.url}/v1", "--name", "capitals", "--poll", 0.1, requests)

    runs = [run("offline.py", *job) for _ in range(2)]

    assert [each.returncode for each in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert {each.stdout for each in runs} == {"completed: 3 of 3 answered\n"}
    answers = requests.with_suffix(".answers.jsonl").read_text().splitlines()
    assert {json.loads(answer)["custom_id"] for answer in answers} == {"france", "water", "seasons"}
    assert len(sidecar.openai.batches.list().data) == 1


def test_the_overnight_job_s_own_script_answers_its_file(sidecar: Sidecar, tmp_path: Path) -> None:
    """Word for word, but for its folders, its service's address and what pip has installed here."""
    job, _ = documents_of("pipelines/offline-job.yaml")
    script = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    pip, *lines = script.splitlines()
    text = "\n".join(lines)
    for named, here in (
        ("/work/", f"{tmp_path}/"),  # first: this tree may lie below a /work
        ("http://assistant:8000", sidecar.url),
        ("python ", f"{sys.executable} "),
        ("/script/", f"{PIPELINES}/"),
        ("/requests/", f"{PIPELINES}/"),
    ):
        assert named in text
        text = text.replace(named, here)

    ended = subprocess.run(
        ["sh", "-ec", text], capture_output=True, text=True, timeout=300, check=False
    )

    assert pip.startswith("pip install")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "completed: 3 of 3 answered\n"
    assert len((tmp_path / "requests.answers.jsonl").read_text().splitlines()) == 3


def test_a_job_fails_where_a_line_was_not_answered(sidecar: Sidecar, tmp_path: Path) -> None:
    line = json.loads(REQUESTS.read_text().splitlines()[0])
    line["body"]["max_tokens"] = -1
    requests = tmp_path / REQUESTS.name
    requests.write_text(json.dumps(line) + "\n")

    ended = run(
        "offline.py", "--url", f"{sidecar.url}/v1", "--name", "bad", "--poll", 0.1, requests
    )

    assert ended.returncode == 1
    assert ended.stdout.strip().endswith("0 of 1 answered") or "failed" in ended.stdout
