"""A model's files may be anything: they are loaded, or refused by the engine's own errors.

Each is opened in a process whose memory is capped: neither a crash nor a hang nor endless memory
comes of a file, whoever wrote it.
"""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_testing.model_opener import ModelOpener
from paceline_testing.tiny_gguf import write_tiny_gguf
from paceline_testing.tiny_model import make_tiny_model

_HEADER_BYTES = 6_000
"""Metadata and tensors' places of the tiny file lie before it."""
_INTERESTING = st.sampled_from(
    [b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff" * 4, b"\x00" * 4, b"\xff" * 8, b"\x00" * 8]
    + [struct.pack("<Q", 1 << power) for power in (31, 32, 40, 62, 63)]
    + [struct.pack("<I", number) for number in (1, 8, 9, 10, 12, 255)]
)
_FUZZ = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as a folder and as a GGUF file."""
    home = tmp_path_factory.mktemp("models")
    make_tiny_model(home / "tiny", "llama")
    write_tiny_gguf(home / "tiny", home / "tiny.gguf")
    return home


@pytest.fixture(scope="module")
def opener(home: Path) -> Iterator[ModelOpener]:
    with ModelOpener(home / "tiny") as opener:
        yield opener


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _gguf(*, keys: int = 1, tensors: int = 0, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body


def _array(kind: int, length: int, values: bytes = b"") -> bytes:
    return _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, kind, length) + values


def _tensor(sizes: list[int], *, kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    place = dims + struct.pack("<IQ", kind, offset)
    return _gguf(keys=0, tensors=1, body=_text("token_embd.weight") + place)


_NESTED = struct.pack("<IQ", 9, 1) * 2_000

NASTY_GGUF: dict[str, tuple[bytes, str]] = {
    "keys without end": (_gguf(keys=1 << 62), "the count of metadata"),
    "tensors without end": (_gguf(keys=0, tensors=1 << 62), "the list of tensors"),
    "a list without end": (_gguf(body=_array(0, 1 << 62)), "tokenizer.ggml.tokens"),
    "a list of texts without end": (_gguf(body=_array(8, 1 << 62)), "tokenizer.ggml.tokens"),
    "lists in lists": (_gguf(body=_array(9, 1, _NESTED)), "tokenizer.ggml.tokens"),
    "more values than any model": (
        _gguf(body=_array(0, 2_500_000, b"\x01" * 2_500_000)),
        "tokenizer.ggml.tokens",
    ),
    "a text without end": (_gguf(body=struct.pack("<Q", 1 << 63)), "the count of metadata"),
    "a text longer than the file": (
        _gguf(body=_text("general.architecture") + struct.pack("<IQ", 8, 1 << 40)),
        "general.architecture",
    ),
    "a value of no type": (_gguf(body=_text("a.key") + struct.pack("<I", 99)), "a.key"),
    "a key twice": (_gguf(keys=2, body=(_text("a.key") + struct.pack("<IB", 0, 1)) * 2), "a.key"),
    "a tensor behind the end": (_tensor([64, 64]), "token_embd.weight"),
    "a tensor far behind the end": (_tensor([4], offset=(1 << 64) - 64), "token_embd.weight"),
    "a product of 2^64": (_tensor([1 << 32, 1 << 32]), "token_embd.weight"),
    "no values": (_tensor([0, 4]), "token_embd.weight"),
    "no shape": (_tensor([]), "token_embd.weight"),
    "no whole block": (_tensor([33], kind=2), "token_embd.weight"),
    "a kind that there is not": (_tensor([4], kind=200), "token_embd.weight"),
    "nothing behind the magic": (b"GGUF", "the header"),
    "a version of the future": (b"GGUF" + struct.pack("<IQQ", 4_000, 0, 0), "the header"),
    "no metadata": (_gguf(keys=0), "general.architecture"),
}


@pytest.mark.parametrize("name", NASTY_GGUF)
def test_a_nasty_gguf_file_is_refused_by_name(
    opener: ModelOpener, tmp_path: Path, name: str
) -> None:
    """With the file, and the key or the tensor that is wrong."""
    content, field = NASTY_GGUF[name]
    path = tmp_path / "nasty.gguf"
    path.write_bytes(content)

    opened = opener.open(path)

    assert opened.refusal == "CorruptModel"
    assert str(path) in opened.message
    assert field in opened.message


@_FUZZ
@given(data=st.data())
def test_a_gguf_file_with_other_bytes_is_loaded_or_refused(
    opener: ModelOpener, home: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Bytes of its header are changed, put in or cut out."""
    content = bytearray((home / "tiny.gguf").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(content), _HEADER_BYTES)))
        _change(content, at, data.draw)
    path = tmp_path / "mutated.gguf"
    path.write_bytes(content)

    opened = opener.open(path)

    assert not opened.refusal or opened.message


def _change(content: bytearray, at: int, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
    new = draw(_INTERESTING)
    how = draw(st.sampled_from(["over", "over", "over", "in", "out", "cut"]))
    if how == "over":
        content[at : at + len(new)] = new
    elif how == "in":
        content[at:at] = new
    elif how == "out":
        del content[at : at + len(new)]
    else:
        del content[at:]


def _safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


NASTY_SAFETENSORS: dict[str, bytes] = {
    "a header without end": struct.pack("<Q", (1 << 63) - 1) + b"{}",
    "a header longer than the file": struct.pack("<Q", 1 << 20) + b"{}",
    "no header": b"\x00" * 8,
    "nothing": b"",
    "a header that is no JSON": _safetensors(b"{" * 64),
    "a deep header": _safetensors(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "a list for a header": _safetensors([1, 2]),
    "tensors that overlap": _safetensors(
        {"a": _entry(0, 16, [4]), "b": _entry(8, 24, [4])}, bytes(24)
    ),
    "a hole": _safetensors({"a": _entry(0, 16, [4]), "b": _entry(32, 48, [4])}, bytes(48)),
    "a tensor behind the end": _safetensors({"a": _entry(0, 1 << 40, [1 << 38])}, bytes(16)),
    "an end before its beginning": _safetensors({"a": _entry(16, 0, [4])}, bytes(16)),
    "a negative size": _safetensors({"a": _entry(0, 16, [-4])}, bytes(16)),
    "a product of 2^64": _safetensors({"a": _entry(0, 0, [1 << 32, 1 << 32])}),
    "a type that there is not": _safetensors({"a": _entry(0, 16, [4], "F7")}, bytes(16)),
    "no tensor of the model": _safetensors({"a": _entry(0, 16, [4])}, bytes(16)),
}


def _copy(home: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for file in (home / "tiny").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("name", NASTY_SAFETENSORS)
def test_a_nasty_safetensors_file_is_refused_by_name(
    opener: ModelOpener, home: Path, tmp_path: Path, name: str
) -> None:
    """Its header is JSON that says where each tensor lies."""
    folder = _copy(home, tmp_path / "nasty")
    (folder / "model.safetensors").write_bytes(NASTY_SAFETENSORS[name])

    opened = opener.open(folder)

    assert opened.refusal == "CorruptModel"
    assert str(folder) in opened.message


@_FUZZ
@given(data=st.data())
def test_a_safetensors_file_with_other_bytes_is_loaded_or_refused(
    opener: ModelOpener, home: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Bytes of its header are changed, put in or cut out."""
    folder = _copy(home, tmp_path / "mutated")
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    length = struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 3))):
        _change(content, data.draw(st.integers(0, min(len(content), length + 8))), data.draw)
    path.write_bytes(content)

    opened = opener.open(folder)

    assert not opened.refusal or opened.message


_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 3, 2**31, 2**63, 10**30, 1e308, 0.5, "", "x", "x" * 10_000, [], {}),
        *([[]], {"a": {}}, ["sliding_attention"] * 3, [None], {"rope_type": "linear"}),
    ]
)


@_FUZZ
@given(data=st.data())
def test_json_files_with_other_values_are_loaded_or_refused(
    opener: ModelOpener, home: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Each field of each may be anything."""
    folder = _copy(home, tmp_path / "mutated")
    path = folder / data.draw(st.sampled_from(["config.json", "generation_config.json"]))
    content = json.loads(path.read_text()) if path.is_file() else {}
    fields = ["sliding_window", "layer_types", "rope_parameters", "head_dim", "eos_token_id"]
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.sampled_from([*content, *fields]))] = data.draw(_VALUES)
    path.write_text(json.dumps(content))

    opened = opener.open(folder)

    assert not opened.refusal or opened.message


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "content",
    ["[" * 200_000 + "]" * 200_000, '{"a": ' * 100_000, "[]", '"x"', "{", "\ud800", ""],
    ids=["deep", "deep and open", "a list", "a text", "half", "half a character", "empty"],
)
def test_a_json_file_that_is_none_is_refused_by_name(
    opener: ModelOpener, home: Path, tmp_path: Path, file: str, content: str
) -> None:
    """Deep ones would end Python's own stack."""
    folder = _copy(home, tmp_path / "nasty")
    (folder / file).write_text(content, errors="surrogatepass")

    opened = opener.open(folder)

    assert opened.refusal == "CorruptModel"
    assert str(folder / file) in opened.message


@pytest.mark.parametrize("shard", ["../elsewhere.safetensors", "/etc/passwd", 7, None, ["a"]])
def test_an_index_names_files_of_its_own_folder(
    opener: ModelOpener, home: Path, tmp_path: Path, shard: object
) -> None:
    """Others may belong to another model of the node."""
    folder = _copy(home, tmp_path / "nasty")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))

    opened = opener.open(folder)

    assert opened.refusal == "CorruptModel"
    assert str(index) in opened.message


def test_the_check_sees_what_takes_more_memory_than_it_may(home: Path, tmp_path: Path) -> None:
    """A valid model above a cap fails there, so what was refused has kept below its own."""
    make_tiny_model(tmp_path / "big", "llama", vocab_size=50_000, hidden_size=512)

    with ModelOpener(home / "tiny") as opener:
        assert opener.open(tmp_path / "big").message == ""
    with ModelOpener(home / "tiny", memory_bytes=64 << 20) as opener:
        assert "memory" in opener.open(tmp_path / "big").message
