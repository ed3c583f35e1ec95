"""Names that cross a process border: what one part renders, the other reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart
from pydantic_settings import BaseSettings

from paceline_api.inference_service import InferenceService
from paceline_api.pod import environment
from paceline_engine.settings import Settings as EngineSettings
from paceline_operator.settings import OperatorSettings
from paceline_sidecar.settings import SidecarSettings

ROOT = Path(__file__).parents[2]
PREFIXES: dict[str, type[BaseSettings]] = {
    "PACELINE_ENGINE_": EngineSettings,
    "PACELINE_SIDECAR_": SidecarSettings,
}


def everything(**engine: Any) -> InferenceService:
    """A service that sets each field which becomes a variable, and `engine` of its engine."""
    return InferenceService.read(
        {
            "metadata": {"name": "chat", "namespace": "ml"},
            "spec": {
                "model": {
                    "uri": "hf://org/name",
                    "revision": "abc",
                    "credentialsSecretRef": {"name": "hub"},
                },
                "engine": {"maxModelLen": 1024, "dtype": "BFloat16"} | engine,
                "sla": {"itl": {"p99": "80ms"}},
                "resources": {"cpu": "1500m"},
                "api": {
                    "auth": {"apiKeysSecretRef": {"name": "keys"}},
                    "tls": {
                        "secretRef": {"name": "cert"},
                        "caBundle": "-----BEGIN CERTIFICATE-----",
                    },
                },
            },
        }
    )


def variables(rendered: list[dict[str, Any]], prefix: str) -> dict[str, str]:
    return {v["name"]: v.get("value", "") for v in rendered if v["name"].startswith(prefix)}


@pytest.mark.parametrize(
    ("render", "prefix", "engine"),
    [
        (environment.engine, "PACELINE_ENGINE_", {}),
        (environment.engine, "PACELINE_ENGINE_", {"tensorParallelSize": 2}),
        (environment.engine, "PACELINE_ENGINE_", {"quantization": "FP8", "kvCacheDtype": "FP8"}),
        (environment.engine, "PACELINE_ENGINE_", {"quantization": "FP8Dynamic"}),
        (environment.engine, "PACELINE_ENGINE_", {"quantization": "AsStored"}),
        (
            environment.engine,
            "PACELINE_ENGINE_",
            {"swapMemory": "1Gi", "scheduling": "Dynamic", "lora": {"maxAdapters": 4}},
        ),
        (
            environment.engine,
            "PACELINE_ENGINE_",
            {
                "speculative": {
                    "method": "Draft",
                    "draftModelUri": "hf://org/small",
                    "draftModelRevision": "abc",
                }
            },
        ),
        (environment.sidecar, "PACELINE_SIDECAR_", {}),
    ],
    ids=["engine", "ranks", "fp8", "fp8 with fp8", "as stored", "alone", "draft", "sidecar"],
)
def test_the_pod_s_variables_are_settings_that_parse(
    render: Any, prefix: str, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renamed setting would otherwise fall back to its default without a word."""
    rendered = variables(render(everything(**engine)), prefix)
    settings = PREFIXES[prefix]

    for name, value in rendered.items():
        monkeypatch.setenv(name, value)
    parsed = settings()

    assert rendered
    assert {name.removeprefix(prefix).lower() for name in rendered} <= set(settings.model_fields)
    assert parsed.model_fields_set >= {n.removeprefix(prefix).lower() for n in rendered}


def test_the_chart_s_variables_are_the_operator_s_settings() -> None:
    rendered = Chart.load(ROOT / "charts" / "paceline").render({}, name="pl", namespace="ns")
    deployment = yaml.safe_load(rendered["paceline/templates/deployment.yaml"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    names = {v["name"].removeprefix("PACELINE_OPERATOR_").lower() for v in container["env"]}
    assert names <= set(OperatorSettings.model_fields)
