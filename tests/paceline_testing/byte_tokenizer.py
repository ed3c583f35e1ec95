"""A tokenizer of 256 bytes and a few special tokens: text and ids are each other's mirror."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS, START = "<|end|>", "<|start|>"
VOCAB_SIZE = len(BYTES) + 2
EOS_ID, START_ID = len(BYTES), len(BYTES) + 1

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('tools are not known') }}{% endif %}"
    "<|start|>{{ message.role }}: {{ message.content }}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Every byte is one token, so a character of several bytes is several tokens."""
    vocab = {piece: index for index, piece in enumerate(BYTES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True), AddedToken(START, special=True)])
    return tokenizer


def write_tokenizer(run_dir: Path, chat_template: str = CHAT_TEMPLATE) -> None:
    """Write the files that an engine writes while it loads its model."""
    byte_tokenizer().save(str(run_dir / "tokenizer.json"))
    config = {"chat_template": chat_template, "bos_token": None, "eos_token": {"content": EOS}}
    (run_dir / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
