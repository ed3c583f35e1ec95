"""The demo fits its load and, where it must, its targets to the machine, and says so."""

from pathlib import Path

import pytest
import yaml

from paceline_cli.fitted_manifest import slowness, write_copy
from paceline_cli.manifest import ManifestError, load
from paceline_cli.traffic.calibration import OUTPUTS, PROMPTS, Speed, workload
from paceline_tuner.service_spec import SLA

QUICKSTART = Path(__file__).parents[3] / "examples/quickstart.yaml"


@pytest.mark.parametrize(
    ("decode_ms", "prefill_ms", "factor"),
    [(20.0, 0.5, 1.0), (50.0, 3.0, 1.0), (100.0, 6.0, 1.75), (200.0, 12.0, 3.5)],
    ids=["fast", "fast enough", "slow", "very slow"],
)
def test_targets_are_loosened_only_where_no_setting_keeps_them(
    decode_ms: float, prefill_ms: float, factor: float
) -> None:
    """The p99 of decodes beside the smallest useful chunk of prefill must fit into the target."""
    speed = Speed(capacity_rps=1.0, decode_ms=decode_ms, prefill_ms=prefill_ms)

    assert slowness(SLA(itl_p99_ms=500.0), speed) == factor


def test_without_an_itl_target_nothing_is_loosened() -> None:
    """Prefill stalls break no other target."""
    assert slowness(SLA(ttft_p99_ms=1.0), Speed(1.0, 1e6, 1e6)) == 1.0


def test_the_copy_differs_in_mode_and_targets_alone(tmp_path: Path) -> None:
    """The demo serves what the manifest says."""
    copy = tmp_path / "out/service.yaml"

    write_copy(QUICKSTART, copy, mode="Observe", slowness=1.5)

    original = yaml.safe_load(QUICKSTART.read_text())
    original["spec"]["tuning"]["mode"] = "Observe"
    original["spec"]["sla"] = {"ttft": {"p99": "22500ms"}, "itl": {"p99": "750ms"}}
    assert yaml.safe_load(copy.read_text()) == original
    assert load(copy).spec.tuning.mode == "Observe"


def test_each_class_of_prompts_gets_a_longer_target(tmp_path: Path) -> None:
    """In the same proportion as the others."""
    manifest = yaml.safe_load(QUICKSTART.read_text())
    classes = [{"upTo": 100, "p99": "2s"}, {"p99": "10s"}]
    manifest["spec"]["sla"]["ttft"] = {"byPromptTokens": classes}
    source, copy = tmp_path / "in.yaml", tmp_path / "out.yaml"
    source.write_text(yaml.safe_dump(manifest))

    write_copy(source, copy, mode="Auto", slowness=1.5)

    assert yaml.safe_load(copy.read_text())["spec"]["sla"]["ttft"] == {
        "byPromptTokens": [{"upTo": 100, "p99": "3000ms"}, {"p99": "15000ms"}]
    }


def test_a_bad_manifest_is_refused_under_its_own_name(tmp_path: Path) -> None:
    """Not under that of the copy."""
    path = tmp_path / "bad.yaml"
    path.write_text("kind: Pod")

    with pytest.raises(ManifestError, match=r"bad\.yaml"):
        write_copy(path, tmp_path / "copy.yaml", mode="Auto", slowness=1.0)


def test_the_load_fits_the_models_context() -> None:
    """The longest prompt and the longest answer together, with room for the tokenizer's say."""
    context = load(QUICKSTART).spec.engine.max_model_len

    assert context is not None
    assert (PROMPTS.max + OUTPUTS.max) * 1.5 < context
    assert workload(1.0).cv == 2.5
