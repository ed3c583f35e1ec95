"""TLS on both ports, with a certificate that may be replaced."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
import uvicorn
from pydantic import ValidationError

from paceline_sidecar.settings import SidecarSettings
from paceline_sidecar.tls import reload_certificate
from paceline_testing.certificates import make_certificate, needs_openssl
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.waiting import wait_until


@needs_openssl
@pytest.mark.usefixtures("engine")
def test_the_public_port_speaks_tls_and_the_admin_port_does_not(
    run_dir: Path, start: Callable[..., Sidecar]
) -> None:
    """Probes and the operator use the admin port inside the cluster."""
    certificate, key = make_certificate(run_dir, "first")
    sidecar = start(tls_cert_file=certificate, tls_key_file=key)
    wait_until(lambda: _ready(sidecar))

    trusted = ssl.create_default_context(cafile=str(certificate))
    address = f"https://127.0.0.1:{sidecar.settings.port}/v1/completions"
    body = {"model": "scripted", "prompt": "Hi"}
    with httpx.Client(verify=trusted, timeout=30) as client:
        answer = client.post(address, json=body)

    assert answer.json()["choices"][0]["text"] == "Hello, world!"


@needs_openssl
async def test_a_replaced_certificate_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next handshake uses it; nobody restarts anything."""
    certificate, key = make_certificate(tmp_path, "first")
    settings = SidecarSettings(run_dir=tmp_path, tls_cert_file=certificate, tls_key_file=key)
    config = uvicorn.Config("unused:app", ssl_certfile=certificate, ssl_keyfile=key)
    loaded = asyncio.Event()

    class Context:
        is_first = True

        def load_cert_chain(self, *_: object) -> None:
            if self.is_first:  # between the removal of a file and its replacement
                self.is_first = False
                raise FileNotFoundError("tls.crt")
            loaded.set()

    monkeypatch.setattr(config, "ssl", Context(), raising=False)
    monkeypatch.setattr("paceline_sidecar.tls._LOOK_EVERY_S", 0.01)
    watcher = asyncio.create_task(reload_certificate(config, settings))
    try:
        await asyncio.sleep(0)
        make_certificate(tmp_path, "second")
        await asyncio.wait_for(loaded.wait(), 30)
    finally:
        watcher.cancel()


@needs_openssl
@pytest.mark.usefixtures("engine")
def test_a_replaced_certificate_serves_the_next_handshake_of_both_ports(
    run_dir: Path, start: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `admin_tls` the operator hears the new one, too."""
    monkeypatch.setattr("paceline_sidecar.tls._LOOK_EVERY_S", 0.1)
    certificate, key = make_certificate(run_dir, "first")
    old = certificate.read_text()
    sidecar = start(tls_cert_file=certificate, tls_key_file=key, admin_tls=True)
    ports = (sidecar.settings.port, sidecar.settings.admin_port)
    address = f"https://127.0.0.1:{ports[1]}/health/live"
    with httpx.Client(verify=ssl.create_default_context(cadata=old), timeout=30) as client:
        assert client.get(address).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(address.replace("https:", "http:"), timeout=30)

    make_certificate(run_dir, "second")

    new = certificate.read_text()
    for port in ports:
        wait_until(partial(_serves, port, new))


def _serves(port: int, certificate: str) -> bool:
    return ssl.get_server_certificate(("127.0.0.1", port)) == certificate


def test_the_admin_port_has_no_certificate_of_its_own(tmp_path: Path) -> None:
    """At start, by name."""
    with pytest.raises(ValidationError, match="admin_tls needs"):
        SidecarSettings(run_dir=tmp_path, admin_tls=True)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    """At start, by name."""
    with pytest.raises(ValidationError, match="go together"):
        SidecarSettings(run_dir=tmp_path, tls_cert_file=tmp_path / "tls.crt")


def test_a_run_directory_too_long_for_a_socket_is_refused() -> None:
    """The kernel's own message would name neither the setting nor the limit."""
    with pytest.raises(ValidationError, match="too long for a Unix socket"):
        SidecarSettings(run_dir=Path("/" + "x" * 120))


def _ready(sidecar: Sidecar) -> bool:
    try:
        return sidecar.admin.get("/health/ready").status_code == 200
    except httpx.TransportError:
        return False
