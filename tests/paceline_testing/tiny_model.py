"""Makes a tiny model of random weights: a Hugging Face folder with a tokenizer, in a second."""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"]

TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    "Pack my box with five dozen liquor jugs, and send 12345 of them.",
    "def add(a, b):\n    return a + b\n",
]
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_tiny_model(folder: Path, family: Family, *, seed: int = 0, **config: Any) -> Any:
    """Fill `folder`, and return the same model as transformers runs it."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - seconds to import

    torch.manual_seed(seed)
    # Eager: the only one that knows soft caps.
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **SIZES | config), attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases too: where they are 1 or 0, leaving them out goes unseen.
            parameter.normal_(std=0.3).add_(parameter.dim() == 1)
    model = model.float().eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def write_tokenizer(folder: Path) -> None:
    """Train a byte-level BPE on a few lines and write it as the hub's models have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"],
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "chat_template": CHAT_TEMPLATE,
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": {"content": SPECIAL_TOKENS[2], "lstrip": False},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
