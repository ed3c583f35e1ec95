"""The environment is read once, and a wrong variable is named."""

from pathlib import Path

import pytest

from paceline_engine.errors import BadSettings
from paceline_engine.settings import read_settings


def test_every_setting_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine without any environment serves the embedded model."""
    monkeypatch.delenv("HF_TOKEN", raising=False)

    settings = read_settings()

    assert settings.model_uri == "builtin://smollm2-135m-instruct"
    assert settings.run_dir == Path("/run/paceline")
    assert settings.hf_token is None


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's token keeps the name that every tool gives it."""
    monkeypatch.setenv("PACELINE_ENGINE_MAX_BATCH_SIZE", "17")
    monkeypatch.setenv("PACELINE_ENGINE_PREFIX_CACHING", "false")
    monkeypatch.setenv("PACELINE_ENGINE_INITIAL_BATCH_SIZE", "")
    monkeypatch.setenv("HF_TOKEN", "secret")

    settings = read_settings()

    assert (settings.max_batch_size, settings.prefix_caching) == (17, False)
    assert settings.initial_batch_size is None
    assert settings.hf_token == "secret"
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("PACELINE_ENGINE_THREADS", "-1", "greater than or equal to 0"),
        ("PACELINE_ENGINE_DEVICE", "tpu", "'auto', 'cpu' or 'cuda'"),
        ("PACELINE_ENGINE_BLOCK_SIZE", "many", "valid integer"),
        ("PACELINE_ENGINE_KV_CACHE_MEMORY_FRACTION", "1.5", "less than or equal to 1"),
        ("PACELINE_ENGINE_OVERLAP", "yes", "'auto', 'on' or 'off'"),
        ("PACELINE_ENGINE_STEP_TIMEOUT_S", "-1", "greater than or equal to 0"),
        ("PACELINE_ENGINE_MAX_TOKEN_BUDGET", "8", "at least max_batch_size (256)"),
    ],
)
def test_a_wrong_setting_is_named_with_its_rule(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, rule: str
) -> None:
    """It becomes the message of a condition."""
    monkeypatch.setenv(name, value)

    with pytest.raises(BadSettings) as caught:
        read_settings()

    assert caught.value.reason == "BadSettings"
    assert rule in caught.value.message
    assert name.removeprefix("PACELINE_ENGINE_").lower() in caught.value.message.lower()
    assert value in caught.value.message


URI = "PACELINE_ENGINE_DRAFT_MODEL_URI"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PACELINE_ENGINE_SPECULATIVE": "draft"}, "draft_model_uri must be set"),
        ({URI: "file:///x"}, "draft_model_uri is for speculative draft alone, got 'file:///x'"),
        (
            {"PACELINE_ENGINE_SPECULATIVE": "ngram", "PACELINE_ENGINE_DRAFT_MODEL_REVISION": "r"},
            "draft_model_revision is for speculative draft alone, got 'r' with ngram",
        ),
        (
            {"PACELINE_ENGINE_DRAFT_QUANTIZATION": "int8"},
            "draft_quantization is for speculative draft alone, got 'int8' with none",
        ),
        (
            {
                "PACELINE_ENGINE_SPECULATIVE": "draft",
                URI: "file:///x",
                "PACELINE_ENGINE_TENSOR_PARALLEL_SIZE": "2",
            },
            "tensor_parallel_size must be 1 where speculative is draft, got 2",
        ),
    ],
    ids=["no model", "not asked for", "revision", "quantization", "ranks"],
)
def test_a_draft_model_is_named_where_it_drafts_and_only_there(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    """A model that nobody asks would take memory for nothing."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(BadSettings) as caught:
        read_settings()

    assert message in caught.value.message


def test_ranks_overlap_and_replay_as_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Insisted on, neither is refused."""
    for name, value in {"TENSOR_PARALLEL_SIZE": "2", "GRAPHS": "on", "OVERLAP": "on"}.items():
        monkeypatch.setenv(f"PACELINE_ENGINE_{name}", value)

    assert read_settings().can_overlap


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PACELINE_ENGINE_SCHEDULING", "static"),
        ("PACELINE_ENGINE_SPECULATIVE", "ngram"),
    ],
)
def test_what_needs_the_tokens_of_each_step_cannot_overlap(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Left to itself the engine does not; insisted on, it is refused."""
    monkeypatch.setenv(name, value)
    assert not read_settings().can_overlap

    monkeypatch.setenv("PACELINE_ENGINE_OVERLAP", "on")

    with pytest.raises(BadSettings, match="overlap must be off or auto unless"):
        read_settings()
