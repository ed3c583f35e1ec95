"""The operator and the command line talk to a sidecar whose admin port speaks TLS."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paceline_cli.pod_client import HttpxPodClient
from paceline_operator.pod_client import AiohttpPodClient
from paceline_testing.certificates import make_certificate, needs_openssl
from paceline_testing.running_sidecar import TOKEN, start_sidecar
from paceline_testing.scripted_engine import ScriptedEngine
from paceline_tuner.pods import PodUnreachableError
from paceline_tuner.service_target import PodTarget

_NAME = "chat.ml.svc"

Client = type[AiohttpPodClient] | type[HttpxPodClient]

pytestmark = needs_openssl


@pytest.fixture(params=[AiohttpPodClient, HttpxPodClient], ids=["operator", "cli"])
def kind(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


@pytest.fixture(scope="module")
def pod() -> Iterator[PodTarget]:
    """A sidecar with a certificate for its Service, as the operator addresses it."""
    run_dir = Path(tempfile.mkdtemp(prefix="pl-"))
    certificate, key = make_certificate(run_dir, _NAME)
    with ScriptedEngine(run_dir):
        sidecar = start_sidecar(
            run_dir, tls_cert_file=certificate, tls_key_file=key, admin_tls=True
        )
        yield PodTarget(
            name="pod-1",
            admin_url=f"https://127.0.0.1:{sidecar.settings.admin_port}",
            token=TOKEN,
            ca_bundle=certificate.read_text(),
            server_name=_NAME,
        )
        sidecar.leave()
        sidecar.join()
    shutil.rmtree(run_dir)


async def test_a_pod_is_verified_by_the_services_authority(kind: Client, pod: PodTarget) -> None:
    """By the name of the Service, since certificates hold no addresses of pods."""
    async with kind(timeout_s=30.0) as client:
        assert await client.get_telemetry(pod, 0)


@pytest.mark.parametrize("what", ["another authority", "no authority", "another name", "no PEM"])
async def test_nobody_else_is_told_the_token(
    kind: Client, pod: PodTarget, what: str, tmp_path: Path
) -> None:
    """An address that another pod has got meanwhile ends in the handshake, before the token."""
    stranger = {
        "another authority": replace(
            pod, ca_bundle=make_certificate(tmp_path, _NAME)[0].read_text()
        ),
        "no authority": replace(pod, ca_bundle=""),
        "another name": replace(pod, server_name="other.ml.svc"),
        "no PEM": replace(pod, ca_bundle="-----BEGIN CERTIFICATE-----"),
    }[what]

    async with kind(timeout_s=30.0) as client:
        with pytest.raises(PodUnreachableError):
            await client.get_telemetry(stranger, 0)
