"""Instructor: an answer of a type, in each way that it has of asking for one."""

from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel

from clients.conftest import Served

instructor: Any = pytest.importorskip("instructor")
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


class City(BaseModel):
    """A city."""

    name: str


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_an_answer_has_the_type_that_was_asked_for(served: Served, mode: str) -> None:
    """At the first try: what the model writes is bound by a grammar."""
    plain = OpenAI(base_url=f"{served.url}/v1", api_key="none")
    client = instructor.from_openai(plain, mode=instructor.Mode[mode])

    city = client.chat.completions.create(
        model=served.model,
        response_model=City,
        messages=[{"role": "user", "content": "Name the capital of France."}],
        max_tokens=64,
        temperature=0,
        max_retries=0,
    )

    assert isinstance(city, City)
