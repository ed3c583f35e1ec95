"""Write the embedded model in the forms that the peers read.

    PYTHONPATH=benchmarks python benchmarks/peers/prepare.py FOLDER

`FOLDER/model` is for transformers and vLLM, in float32. Where `FOLDER/openvino` is installed,
`FOLDER/openvino-WEIGHTS` is made from it for float32, INT8 and INT4. Where `FOLDER/llama.cpp` is,
the embedded GGUF file is quantised again as `FOLDER/gguf/KIND.gguf`, for llama.cpp and for us.
"""

import argparse
import subprocess
from pathlib import Path

from transformers import AutoTokenizer

from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from peers.places import LLAMA_QUANTIZE, VLLM_MODEL, gguf_model, openvino_model
from peers.setup import Precision
from transformers_peer import transformers_model

OPENVINO_FORMATS: dict[Precision, list[str]] = {
    "float32": ["fp32"],
    "int8": ["int8"],
    "int4": ["int4", "--group-size", "64"],  # rows of 576 are no multiple of its 128
}
GGUF_KINDS: dict[Precision, str] = {"q8_0": "Q8_0", "q4_k": "Q4_K_M"}


def embedded_model() -> Path:
    """Return where its GGUF file lies."""
    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    return locate("builtin://smollm2-135m-instruct", None, places).path


def write_model(folder: Path) -> None:
    """Save weights and tokenizer as transformers reads them from the embedded GGUF file."""
    gguf = embedded_model()
    transformers_model().save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def convert(environment: Path, model: Path, folder: Path, weight_format: list[str]) -> None:
    """Convert the model for OpenVINO, its weights in the given format."""
    options = ["--task", "text-generation-with-past", "--weight-format", *weight_format]
    program = environment / "bin" / "optimum-cli"
    command = [program, "export", "openvino", "-m", model, *options, folder]
    subprocess.run([str(word) for word in command], check=True)


def quantize(program: Path, file: Path, kind: str) -> None:
    """Write the embedded model with its weights quantised to the given kind."""
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_suffix(".part")
    subprocess.run([program, "--allow-requantize", embedded_model(), unfinished, kind], check=True)
    unfinished.rename(file)


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.resolve()
    if not (folder / VLLM_MODEL / "config.json").exists():
        write_model(folder / VLLM_MODEL)
    environment = folder / "openvino"
    for weights, weight_format in OPENVINO_FORMATS.items():
        converted = openvino_model(folder, weights)
        if environment.exists() and not (converted / "openvino_model.bin").exists():
            convert(environment, folder / VLLM_MODEL, converted, weight_format)
    program = folder / LLAMA_QUANTIZE
    for name, kind in GGUF_KINDS.items():
        if program.exists() and not gguf_model(folder, name).exists():
            quantize(program, gguf_model(folder, name), kind)


if __name__ == "__main__":
    main()
