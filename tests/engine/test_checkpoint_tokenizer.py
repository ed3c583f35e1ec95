"""The tokenizer built from a GGUF file encodes as the one that transformers builds from it."""

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate

pytestmark = pytest.mark.model

PROMPTS: list[str] = json.loads((Path(__file__).parent / "data/parity_prompts.json").read_text())
TEXTS = [
    *PROMPTS,
    "",
    " ",
    " leading and trailing ",
    "tabs\tand\r\nline ends\n\n\n",
    "I'm, you're, he'll, WE'VE, don't — it's",
    "price: 1234567.89 EUR, 50% off, 10^9",
    "  indented\n    more\n\tand a tab",
    "emoji 👩‍💻🏳️‍🌈, combining é vs é, ﬁ ligature",
    "中文字符 العربية हिन्दी русский ελληνικά",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>a/b<file_sep>",
    "<|im_start|> <|im_end|>x<|im_end|>",
    "nearly <|im_start and <|im_end|",
    "\x00\x01 control \u200b zero width \ufeff",
    "x" * 300,
    "https://example.org/a?b=c&d=%20#e",
]


@pytest.fixture(scope="module")
def path() -> Path:
    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    return locate("builtin://smollm2-135m-instruct", None, places).path


@pytest.fixture(scope="module")
def checkpoint(path: Path) -> Checkpoint:
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def ours(checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer.from_str(checkpoint.tokenizer.tokenizer_json)


def test_it_encodes_and_decodes_as_transformers_does(path: Path, ours: Tokenizer) -> None:
    os.environ["TQDM_DISABLE"] = "1"
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds to import

    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)

    for text in TEXTS:
        ids = ours.encode(text).ids
        assert ids == theirs(text).input_ids, text
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_is_encoded_comes_back(ours: Tokenizer, text: str) -> None:
    """Byte-level BPE loses nothing."""
    assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_each_digit_is_a_token_of_its_own(ours: Tokenizer) -> None:
    """The file names its split `smollm`: digits first, so spaces before one stay together."""
    assert ours.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]


def test_the_files_say_how_a_chat_is_written(checkpoint: Checkpoint) -> None:
    assert checkpoint.tokenizer.bos_token == "<|im_start|>"
    assert checkpoint.tokenizer.eos_token == "<|im_end|>"
    assert checkpoint.eos_token_ids == (2,)
    assert "add_generation_prompt" in (checkpoint.tokenizer.chat_template or "")
