"""The paths of the peers and their models in the folder that install.py and prepare.py fill."""

from pathlib import Path

from peers.setup import Precision

VLLM_MODEL = Path("model")
LLAMA_SERVER = Path("llama.cpp", "build", "bin", "llama-server")
LLAMA_QUANTIZE = LLAMA_SERVER.with_name("llama-quantize")


def openvino_model(folder: Path, weights: Precision) -> Path:
    """Return the folder of OpenVINO's model with these weights."""
    return folder / f"openvino-{weights}"


def gguf_model(folder: Path, kind: Precision) -> Path:
    """Return the GGUF file of this kind."""
    return folder / "gguf" / f"{kind}.gguf"
