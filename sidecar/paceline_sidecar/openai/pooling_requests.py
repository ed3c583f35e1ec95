"""`POST /v1/embeddings` and `POST /v1/score`: texts in, numbers out."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.api_request import ApiRequest
from paceline_sidecar.openai.completion_request import MAX_PROMPTS, PromptList, TokenIds, as_prompts

# One first text stands before every second one: a small body can ask for a great many tokens.
_MOST_CHARACTERS = 1024 * 1024

Texts = Annotated[list[str], PromptList]


class EmbeddingsRequest(ApiRequest):
    """`POST /v1/embeddings`."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        "dimensions": (),
        "truncate_prompt_tokens": (),
        "truncation_side": (),
        "normalize": (True,),
        "messages": (),
        "chat_template": (),
        "add_special_tokens": (True,),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
    }

    input: str | Annotated[list[str], PromptList] | TokenIds | Annotated[list[TokenIds], PromptList]
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """`input`, always as a list."""
        return as_prompts(self.input)


class ScoreRequest(ApiRequest):
    """`POST /v1/score`: one text with one or many, or as many with as many."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        "truncate_prompt_tokens": (),
        "truncation_side": (),
        "mm_processor_kwargs": ({},),
    }

    text_1: str | Texts
    text_2: str | Texts
    user: str | None = None

    @model_validator(mode="after")
    def _pairs_up(self) -> Self:
        if len(self.pairs) > MAX_PROMPTS:
            raise InvalidRequest(f"text_2: at most {MAX_PROMPTS} pairs", param="text_2")
        characters = sum(len(first) + len(second) for first, second in self.pairs)
        if characters > _MOST_CHARACTERS:
            message = (
                f"text_2: all pairs together have {characters} characters, text_1 counted for each"
                f" of them; {_MOST_CHARACTERS} are the most"
            )
            raise InvalidRequest(message, param="text_2")
        for index, (first, second) in enumerate(self.pairs):
            if not first or not second:
                name = "text_2" if first else "text_1"
                message = f"{name} must not be empty, pair {index} is"
                raise InvalidRequest(message, param=name)
        return self

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """What is to be scored; raises `InvalidRequest`."""
        firsts = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        seconds = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(firsts) == 1:
            firsts = firsts * len(seconds)
        if len(firsts) != len(seconds):
            message = (
                "text_1 must be one text, or as many as text_2,"
                f" got {len(firsts)} and {len(seconds)}"
            )
            raise InvalidRequest(message, param="text_1")
        return list(zip(firsts, seconds, strict=True))
