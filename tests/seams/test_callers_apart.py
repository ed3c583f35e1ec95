"""A caller finds no trace of another's prompts in the prefix cache of a real engine."""

from collections.abc import Iterator

import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.whole_service import whole_service

_PROMPT = "the same long prompt, said by one caller after the other, " * 3


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One that knows two callers by name, the first of them by two keys."""
    folder = tmp_path_factory.mktemp("service")
    keys = folder / "keys"
    keys.write_text("team-a: key-of-team-a\nteam-a: next-key-of-team-a\nteam-b: key-of-team-b\n")
    with whole_service(folder / "tiny", api_keys_file=keys) as (sidecar, _):
        yield sidecar


def _cached_tokens(sidecar: Sidecar, key: str, prompt: str, **fields: str) -> int:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, **fields}
    headers = {"authorization": f"Bearer {key}"}
    answer = sidecar.public.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    details = answer.json()["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"]) if details else 0


def test_a_second_key_finds_nothing_of_the_first(sidecar: Sidecar) -> None:
    """Neither in `usage` nor by timing: what is not found is computed anew."""
    assert _cached_tokens(sidecar, "key-of-team-a", _PROMPT) == 0
    assert _cached_tokens(sidecar, "key-of-team-a", _PROMPT) > 0

    assert _cached_tokens(sidecar, "key-of-team-b", _PROMPT) == 0


def test_keys_of_one_name_share_what_is_cached(sidecar: Sidecar) -> None:
    """Exchanging a key costs its caller nothing."""
    prompt = f"exchanged: {_PROMPT}"
    assert _cached_tokens(sidecar, "key-of-team-a", prompt) == 0

    assert _cached_tokens(sidecar, "next-key-of-team-a", prompt) > 0


def test_tenants_behind_one_key_are_apart_by_their_salt(sidecar: Sidecar) -> None:
    """And a salt is no way into the cache of another key."""
    prompt = f"salted: {_PROMPT}"
    assert _cached_tokens(sidecar, "key-of-team-a", prompt, cache_salt="one") == 0
    assert _cached_tokens(sidecar, "key-of-team-a", prompt, cache_salt="one") > 0

    assert _cached_tokens(sidecar, "key-of-team-a", prompt, cache_salt="two") == 0
    assert _cached_tokens(sidecar, "key-of-team-b", prompt, cache_salt="one") == 0
    assert _cached_tokens(sidecar, "key-of-team-a", prompt) == 0
