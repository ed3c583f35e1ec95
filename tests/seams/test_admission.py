"""Admission as a manifest writes it, and as the sidecar obeys it."""

from pathlib import Path

import msgspec
import pytest

from paceline_api.pod.runtime_config import runtime_config
from paceline_api.tuning_spec import tuning_spec
from paceline_cli.manifest import load
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, KeyLimits
from paceline_sidecar.runtime_patch import ConfigPatch, merged
from paceline_testing.services import a_service
from paceline_tuner.patch import admission_body

LANES = Path(__file__).parents[2] / "examples/lanes.yaml"
BEFORE = {
    "max_queued_requests",
    "max_queued_tokens",
    "reject_at",
    "request_timeout_s",
    "shed_hopeless",
}
"""What sidecars of 0.2 know."""


def obeyed(body: object) -> HotConfig:
    patch = msgspec.json.decode(msgspec.json.encode(body), type=ConfigPatch)
    return merged(HotConfig(), patch)


def test_the_example_of_lanes_is_valid_and_obeyed() -> None:
    """From the file to what the sidecar does with it."""
    config = obeyed(runtime_config(tuning_spec(load(LANES).spec)))

    assert config.batch_sla is not None
    assert config.batch_sla.ttft_p99_ms == 300_000
    assert config.admission.request_timeout_s == 600
    assert config.admission.max_output_tokens == 512
    assert config.admission.limits_of("web") == KeyLimits(4, 32, None, 600_000)
    assert config.admission.limits_of("reports") == KeyLimits(1, 32, 120, 60_000)
    assert config.admission.limits_of("somebody else") == KeyLimits(1, 32, None, 60_000)


@pytest.mark.parametrize("knows_keys", [False, True])
def test_a_service_that_limits_no_key_is_admitted_to_as_before(knows_keys: bool) -> None:
    """With the defaults of the manifest the sidecar's own hold, whichever sidecar it is."""
    spec = tuning_spec(a_service().spec)

    body = admission_body(spec.admission, knows_keys=knows_keys)

    assert obeyed({"admission": body}).admission == AdmissionPolicy()
    assert knows_keys or body.keys() == BEFORE


def test_the_order_of_the_manifest_is_the_sidecars() -> None:
    """Both ways, as it is hot; a sidecar that knows no other order is not told of its own."""
    spec = tuning_spec(a_service(admission={"order": "ShortestFirst"}).spec)
    default = tuning_spec(a_service().spec)

    asked = obeyed({"admission": admission_body(spec.admission, knows_keys=True)})
    back = obeyed({"admission": admission_body(default.admission, knows_keys=True)})

    assert asked.admission.order == "ShortestFirst"
    assert back.admission.order == "Fifo"
    assert "order" not in admission_body(default.admission, knows_keys=False)
