"""Write the embedded model as float32 folders that the peers read.

    python benchmarks/peers/prepare.py FOLDER

`FOLDER/model` is for transformers and vLLM; `FOLDER/openvino-model` is made from it where
`FOLDER/openvino` is installed.
"""

import argparse
import subprocess
from pathlib import Path

from transformers import AutoTokenizer

from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from transformers_peer import transformers_model


def write_model(folder: Path) -> None:
    """Save weights and tokenizer as transformers reads them from the embedded GGUF file."""
    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    gguf = locate("builtin://smollm2-135m-instruct", None, places).path
    transformers_model().save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def convert(environment: Path, model: Path, folder: Path) -> None:
    """Convert the model for OpenVINO, its weights kept in float32."""
    options = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
    program = environment / "bin" / "optimum-cli"
    command = [program, "export", "openvino", "-m", model, *options, folder]
    subprocess.run([str(word) for word in command], check=True)


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.resolve()
    if not (folder / "model" / "config.json").exists():
        write_model(folder / "model")
    environment, converted = folder / "openvino", folder / "openvino-model"
    if environment.exists() and not (converted / "openvino_model.bin").exists():
        convert(environment, folder / "model", converted)


if __name__ == "__main__":
    main()
