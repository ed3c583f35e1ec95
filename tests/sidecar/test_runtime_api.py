"""The runtime API: limits that change while serving, telemetry that can be resumed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine, a_step
from paceline_testing.waiting import wait_until
from paceline_wire import Coefficients, MeasuredStep, StepProfile

PAGE = (Path(__file__).parents[2] / "docs" / "runtime-api.md").read_text()
EXAMPLES = [
    json.loads(block) for block in PAGE.split("```json\n")[1:] for block in [block.split("```")[0]]
]


def test_limits_have_the_fields_of_the_page(sidecar: Sidecar) -> None:
    """Names and nesting, as the example shows them."""
    answer = sidecar.admin.get("/runtime/limits").json()

    example = EXAMPLES[0]
    assert answer.keys() == example.keys()
    for name in ("requested", "capacity", "sla", "admission", "tuner"):
        assert answer[name].keys() == example[name].keys()
    assert answer["effective"].keys() == example["requested"].keys()


def test_telemetry_has_the_fields_of_the_page(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """So has every record in it."""
    engine.script.steps = [a_step()]
    sidecar.openai.completions.create(model="scripted", prompt="Hi")
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["steps"])

    answer = sidecar.admin.get("/runtime/telemetry").json()

    example = EXAMPLES[1]
    assert answer.keys() == example.keys()
    for name in ("load", "model", "info"):
        assert answer[name].keys() == example[name].keys()
    for name in ("steps", "requests", "sketches"):
        assert answer[name][0].keys() == example[name][0].keys()


def test_a_patch_changes_any_subset(sidecar: Sidecar) -> None:
    """What is left out stays; null switches the pacer off."""
    first = sidecar.admin.patch(
        "/runtime/limits",
        json={"epoch": 5, "max_batch_size": 8, "step_target_ms": 40, "lease_s": 60},
    ).json()
    second = sidecar.admin.patch(
        "/runtime/limits", json={"epoch": 6, "step_target_ms": None, "certified": True}
    ).json()

    assert first["effective"]["max_batch_size"] == 8
    assert first["effective"]["step_target_ms"] == 40
    assert 0 < first["lease_expires_s"] <= 60
    assert second["effective"]["max_batch_size"] == 8
    assert second["effective"]["step_target_ms"] is None
    assert second["certified"] == second["effective"]
    assert second["lease_expires_s"] is None
    assert second["epoch"] == 6


def test_what_the_tuner_says_is_answered_until_a_call_without_it(sidecar: Sidecar) -> None:
    """One that says nothing may be an older operator, which has not made the newer one's status."""
    status = {"phase": "Tracking", "verdict": "Meeting", "binding": "SLA:itl"}
    nothing = {"phase": "", "verdict": "", "binding": "", "age_s": None}
    bodies: list[dict[str, Any]] = [{}, {"tuner": status}, {}]

    said = [
        sidecar.admin.patch("/runtime/limits", json={"epoch": 5, "lease_s": 60, **body}).json()
        for body in bodies
    ]

    assert [answer["tuner"] for answer in said] == [
        nothing, status | {"age_s": said[1]["tuner"]["age_s"]}, nothing,
    ]  # fmt: skip
    assert said[1]["tuner"]["age_s"] >= 0


@pytest.mark.parametrize("pace", ["pace_tpot_ms", "batch_step_target_ms"])
def test_a_pace_is_set_held_and_cleared(sidecar: Sidecar, pace: str) -> None:
    """As the step target: what is left out stays, null removes it."""
    bodies: list[dict[str, int | None]] = [{pace: 40}, {"max_batch_size": 8}, {pace: None}]

    held = [
        sidecar.admin.patch("/runtime/limits", json={"epoch": 5 + place, **body}).json()
        for place, body in enumerate(bodies)
    ]

    assert [answer["effective"][pace] for answer in held] == [40, 40, None]


def test_a_limit_above_the_capacity_is_clamped_and_named(sidecar: Sidecar) -> None:
    """The caller learns what holds."""
    answer = sidecar.admin.patch(
        "/runtime/limits", json={"epoch": 2, "max_batch_size": 4000}
    ).json()

    assert answer["requested"]["max_batch_size"] == 4000
    assert answer["effective"]["max_batch_size"] == 64
    assert answer["clamped"] == ["max_batch_size"]


def test_an_equal_epoch_renews_the_lease_and_changes_nothing(sidecar: Sidecar) -> None:
    """Two writers of one epoch cannot overwrite each other."""
    sidecar.admin.patch("/runtime/limits", json={"epoch": 5, "token_budget": 100})

    answer = sidecar.admin.patch(
        "/runtime/limits",
        json={"epoch": 5, "token_budget": 900, "lease_s": 60, "sla": {"ttft_p99_ms": 1}},
    )

    assert answer.status_code == 200
    assert answer.json()["effective"]["token_budget"] == 100
    assert answer.json()["sla"]["ttft_p99_ms"] is None
    assert answer.json()["lease_expires_s"] > 0


def test_an_old_epoch_is_a_conflict_that_tells_the_state(sidecar: Sidecar) -> None:
    """Whoever comes late learns what holds."""
    sidecar.admin.patch("/runtime/limits", json={"epoch": 5, "token_budget": 100})

    answer = sidecar.admin.patch("/runtime/limits", json={"epoch": 4, "token_budget": 200})

    assert answer.status_code == 409
    assert answer.json()["epoch"] == 5
    assert answer.json()["effective"]["token_budget"] == 100


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"epoch": 2, "max_batch_size": 0}, "max_batch_size"),
        ({"epoch": 2, "max_batch_size": "8"}, "max_batch_size"),
        ({"epoch": 2, "step_target_ms": -1}, "step_target_ms"),
        ({"epoch": 2, "interactive_share": 1.5}, "interactive_share"),
        ({"epoch": 2, "sla": {"ttft_p99_ms": 0}}, "sla.ttft_p99_ms"),
        ({"epoch": 2, "sla": {"objective": 1.0}}, "sla.objective"),
        ({"epoch": 2, "admission": {"reject_at": 0}}, "admission.reject_at"),
        ({"epoch": 2, "speed": 9}, "speed"),
        ({"epoch": 2, "coefficients": {"theta": [1.0] * 4, "knee": 256}}, "coefficients.theta"),
        (
            {"epoch": 2, "coefficients": {"theta": [1, -1, 1, 1, 1], "knee": 256}},
            "coefficients.theta",
        ),
        ({"epoch": 2, "coefficients": {"theta": [1.0] * 5, "knee": 0}}, "coefficients.knee"),
        (
            {"epoch": 2, "coefficients": {"theta": [1.0] * 5, "knee": 1, "bin_tokens": 0}},
            "coefficients.bin_tokens",
        ),
        (
            {"epoch": 2, "coefficients": {"theta": [1.0] * 5, "knee": 1, "correction": ["x"]}},
            "coefficients.correction",
        ),
        ({"epoch": 2, "coefficients": {"theta": [1.0] * 5, "knee": 1, "h": 2}}, "coefficients"),
        ({"max_batch_size": 8}, "epoch"),
    ],
    ids=str,
)
def test_a_bad_value_is_422_with_the_fields_name(
    sidecar_of_module: Sidecar, patch: dict[str, object], field: str
) -> None:
    """And nothing is changed."""
    answer = sidecar_of_module.admin.patch("/runtime/limits", json=patch)

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == field
    assert sidecar_of_module.admin.get("/runtime/limits").json()["epoch"] == 1


def test_coefficients_reach_the_engine(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """A new pod starts from what the last one measured; a change without them says nothing."""
    seed = {"theta": [30.0, 2, 0.4, 1.9, 50], "knee": 256, "correction": [1, 0.97]}

    sidecar.admin.patch("/runtime/limits", json={"epoch": 5, "coefficients": seed})
    sidecar.admin.patch("/runtime/limits", json={"epoch": 6, "token_budget": 100})

    assert [change.coefficients for change in engine.changes[-2:]] == [
        Coefficients([30.0, 2.0, 0.4, 1.9, 50.0], 256, [1.0, 0.97]),
        None,
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 60_000,
        b'{"epoch": NaN}',
        b"\xff",
        b'{"epoch": 2, "coefficients": {"theta": [1, 1, 1, 1, 1e999], "knee": 1}}',
    ],
)
def test_a_broken_patch_is_refused(sidecar_of_module: Sidecar, content: bytes) -> None:
    """Never a 500."""
    answer = sidecar_of_module.admin.patch("/runtime/limits", content=content)

    assert answer.status_code in {400, 422}


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic x", "Bearer"])
@pytest.mark.parametrize("path", ["/runtime/limits", "/runtime/telemetry", "/runtime/profile"])
def test_without_the_token_nothing_is_said(
    sidecar_of_module: Sidecar, path: str, header: str | None
) -> None:
    """401, before anything is read."""
    headers = {} if header is None else {"authorization": header}

    answer = httpx.get(f"{sidecar_of_module.admin_url}{path}", headers=headers, timeout=30)

    assert answer.status_code == 401


def test_limits_need_an_engine(start: Callable[..., Sidecar]) -> None:
    """There is nothing to change yet; telemetry says so."""
    sidecar = start()
    wait_until(sidecar.live)

    assert sidecar.admin.get("/runtime/limits").status_code == 503
    assert sidecar.admin.patch("/runtime/limits", json={"epoch": 2}).status_code == 503
    telemetry = sidecar.admin.get("/runtime/telemetry").json()
    assert (telemetry["ready"], telemetry["limits"], telemetry["load"]) == (False, None, None)


def test_telemetry_is_resumed_where_the_last_answer_ended(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """No record twice, none left out, steps and requests in one numbering."""
    engine.script.steps = [a_step(1), a_step(2)]
    wait_until(lambda: len(sidecar.admin.get("/runtime/telemetry").json()["steps"]) == 2)
    first = sidecar.admin.get("/runtime/telemetry").json()
    sidecar.openai.completions.create(model="scripted", prompt="Hi")

    second = sidecar.admin.get("/runtime/telemetry", params={"since": first["next"]}).json()

    assert [step["seq"] for step in first["steps"]] == [1, 2]
    assert second["steps"] == []
    assert [request["seq"] for request in second["requests"]] == [3]
    assert (second["next"], second["lost"]) == (3, 0)
    request = second["requests"][0]
    assert request["outcome"] == "ok"
    assert request["prompt_tokens"] == 2
    assert request["output_tokens"] == 14
    assert 0 <= request["queue_ms"] <= request["ttft_ms"]
    gaps = sum(sum(part["bins"].values()) + part["zero"] for part in second["sketches"])
    assert gaps == 13


@pytest.mark.parametrize("since", ["-1", "x", "9" * 30, ""])
def test_since_is_a_number(sidecar_of_module: Sidecar, since: str) -> None:
    """422 with its name."""
    answer = sidecar_of_module.admin.get("/runtime/telemetry", params={"since": since})

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "since"


def test_the_configuration_file_is_applied_to_every_new_engine(
    run_dir: Path, engine: ScriptedEngine, start: Callable[..., Sidecar]
) -> None:
    """Pods that start while the operator is away still start right."""
    path = run_dir / "runtime.json"
    content = {"max_batch_size": 3, "sla": {"ttft_p99_ms": 700}, "config_hash": "abc"}
    path.write_text(json.dumps(content))
    sidecar = start(runtime_config_file=path)
    wait_until(sidecar.ready)

    first = sidecar.admin.get("/runtime/limits").json()
    sidecar.admin.patch("/runtime/limits", json={"epoch": 9, "config_hash": "newer"})
    engine.stop()
    wait_until(lambda: not sidecar.ready())
    with ScriptedEngine(run_dir):
        wait_until(sidecar.ready)
        second = sidecar.admin.get("/runtime/limits").json()

    assert first["effective"]["max_batch_size"] == 3
    assert (first["sla"]["ttft_p99_ms"], first["config_hash"]) == (700, "abc")
    assert second["effective"]["max_batch_size"] == 3
    assert second["config_hash"] == "newer"  # what was patched since is newer than the file


def test_a_bad_configuration_file_is_a_reason_not_to_be_ready(
    run_dir: Path, engine: ScriptedEngine, start: Callable[..., Sidecar]
) -> None:
    """The field is named where a person looks."""
    del engine
    path = run_dir / "runtime.json"
    path.write_text('{"max_batch": 3}')
    sidecar = start(runtime_config_file=path)
    wait_until(sidecar.live)

    wait_until(lambda: "`max_batch`" in sidecar.public.get("/health/ready").text)


def test_the_profile_of_the_start_is_told(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """With the fields of the page; null where the engine measured nothing."""
    assert sidecar.admin.get("/runtime/profile").json() == {
        "instance": engine.instance,
        "profile": None,
    }


def test_a_profile_has_the_fields_of_the_page(
    run_dir: Path, script: Script, start: Callable[..., Sidecar]
) -> None:
    """Each size with what it took; the scrape says how long it all did."""
    steps = MeasuredStep(1, 0, 32, 0, 4.2), MeasuredStep(8, 64, 256, 2048, 5.5)
    script.profile = StepProfile(took_s=1.5, is_used=True, steps=steps)
    with ScriptedEngine(run_dir, script):
        sidecar = start()
        wait_until(sidecar.ready)

        answer = sidecar.admin.get("/runtime/profile").json()
        wait_until(lambda: "step_profile_sizes" in sidecar.admin.get("/metrics").text)
        scraped = sidecar.admin.get("/metrics").text

    example = EXAMPLES[2]
    assert answer.keys() == example.keys()
    assert answer["profile"].keys() == example["profile"].keys()
    assert [step.keys() for step in answer["profile"]["steps"]] == [
        example["profile"]["steps"][0].keys()
    ] * 2
    assert answer["profile"]["steps"][1]["ms"] == 5.5
    assert 'paceline_step_profile_seconds{model_name="scripted"} 1.5' in scraped
    assert 'paceline_step_profile_sizes{model_name="scripted"} 2.0' in scraped


def test_a_sample_is_small_and_stands_for_all(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Who reads thousands of pods asks for one; the answer's other fields are the same."""
    engine.script.steps = [a_step()] * 100
    sidecar.openai.completions.create(model="scripted", prompt="Hi")
    wait_until(lambda: len(sidecar.admin.get("/runtime/telemetry").json()["steps"]) >= 100)

    whole = sidecar.admin.get("/runtime/telemetry").json()
    sampled = sidecar.admin.get("/runtime/telemetry?sample=5").json()

    assert sampled.keys() - whole.keys() == {"step_rows", "request_rows"}
    assert (sampled["steps"], sampled["requests"]) == ([], [])
    assert len(sampled["step_rows"]) <= 5
    assert sum(row[-2] for row in sampled["step_rows"]) >= len(whole["steps"])
    assert sum(row[-1] for row in sampled["request_rows"]) == len(whole["requests"])
    assert sampled["sketches"] == whole["sketches"]


def test_slices_that_were_read_are_not_sent_again(sidecar: Sidecar) -> None:
    """Two minutes of them are most of an answer; all are there for who has read nothing."""
    sidecar.openai.completions.create(model="scripted", prompt="Hi")
    wait_until(lambda: sidecar.admin.get("/runtime/telemetry").json()["sketches"])
    first = sidecar.admin.get("/runtime/telemetry?sample=5").json()

    later = sidecar.admin.get(f"/runtime/telemetry?sample=5&since={first['next']}").json()

    oldest = min(part["start_at"] for part in first["sketches"])
    assert first["sketches"]
    assert all(part["start_at"] >= oldest for part in later["sketches"])


@pytest.mark.parametrize("sample", ["-1", "x", "²", "1" * 30])
def test_a_sample_that_is_no_number_is_refused(sidecar: Sidecar, sample: str) -> None:
    """With the field's name, as `since` is."""
    answer = sidecar.admin.get("/runtime/telemetry", params={"sample": sample})

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "sample"


def test_a_change_for_another_engine_is_refused(sidecar: Sidecar) -> None:
    """It was decided for what that one can do; the answer shows who is here."""
    here = sidecar.admin.get("/runtime/limits").json()

    wrong = sidecar.admin.patch(
        "/runtime/limits", json={"epoch": 7, "max_batch_size": 3, "instance": "another"}
    )
    right = sidecar.admin.patch(
        "/runtime/limits", json={"epoch": 7, "max_batch_size": 3, "instance": here["instance"]}
    )

    assert wrong.status_code == 409
    assert wrong.json()["requested"] == here["requested"]
    assert wrong.json()["instance"] == here["instance"]
    assert right.json()["requested"]["max_batch_size"] == 3
