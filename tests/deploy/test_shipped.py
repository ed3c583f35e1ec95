"""What the images install, for the SBOM and the audit."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "shipped.py"
_OF_ONE_PART = {"operator": "kopf", "sidecar": "fastapi", "engine": "torch", "cli": "click"}
_TOOLS = {"pytest", "mypy", "ruff", "hypothesis"}


def _shipped(part: str) -> dict[str, str]:
    command = [sys.executable, str(SCRIPT), part]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    pairs = (line.split("==") for line in done.stdout.splitlines())
    return {name: installed for name, installed in pairs}  # noqa: C416 - pairs are lists


@pytest.mark.parametrize("part", _OF_ONE_PART)
def test_a_part_lists_what_it_runs_on_and_no_tool(part: str) -> None:
    """With the versions that were tested here, and what they need in turn."""
    found = _shipped(part)

    assert _OF_ONE_PART[part] in found
    assert found["msgspec"] == version("msgspec")
    assert not _TOOLS & found.keys()
    assert ("torch" in found) == (part == "engine")


def test_what_it_needs_in_turn_is_listed() -> None:
    """Starlette is FastAPI's, and serves every request."""
    assert _shipped("sidecar")["starlette"] == version("starlette")


@pytest.mark.slow
def test_the_sbom_names_every_distribution_and_no_address_of_this_machine(tmp_path: Path) -> None:
    """As `make sbom` writes it: by package URLs, which scanners look up."""
    listed, sbom = tmp_path / "sidecar.txt", tmp_path / "sidecar.cdx.json"
    found = _shipped("sidecar")
    listed.write_text("".join(f"{name}=={installed}\n" for name, installed in found.items()))
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", str(listed)]
    options = ["--output-reproducible", "--of", "JSON", "-o", str(sbom)]
    subprocess.run([*command, *options], check=True, capture_output=True)

    components = json.loads(sbom.read_text())["components"]

    assert {each["purl"] for each in components} == {
        f"pkg:pypi/{name}@{installed}" for name, installed in found.items()
    }
    addresses = {ref["url"] for each in components for ref in each.get("externalReferences", ())}
    assert all(address.startswith("https://pypi.org/") for address in addresses)
