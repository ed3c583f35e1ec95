"""Recognises that a GPU ran out of memory, whoever noticed it, and says what to lower."""

from collections.abc import Iterator
from contextlib import contextmanager

from paceline_engine.errors import DoesNotFit, EngineError
from paceline_engine.settings import Settings

_TOLD = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""How the driver, Triton, NCCL and the libraries of products say it, without a class of its own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error, or one that it arose from, is that the device has no memory left.

    A capture that ran out of memory cannot be ended either, and that error is the one to be seen.
    """
    # Not imported at the top: it takes seconds, and an engine without it asks only when it fails.
    import torch  # noqa: PLC0415 - as above

    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, torch.OutOfMemoryError):
            return True
        if isinstance(cause, RuntimeError) and any(words in str(cause) for words in _TOLD):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


@contextmanager
def memory_explained(settings: Settings, when: str) -> Iterator[None]:
    """Raise `DoesNotFit` in place of a lack of memory that nobody has explained yet."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error) and not isinstance(error, EngineError):
            raise DoesNotFit(out_of_memory(settings, when)) from error
        raise


def out_of_memory(settings: Settings, when: str) -> str:
    """Say when it was, and which settings to lower."""
    return f"The GPU ran out of memory {when}. {what_to_lower(settings)}"


def what_to_lower(settings: Settings) -> str:
    """Name the settings that memory follows from, with their values."""
    return (
        f"Lower PACELINE_ENGINE_KV_CACHE_MEMORY_FRACTION ({settings.kv_cache_memory_fraction:g}), "
        f"PACELINE_ENGINE_MAX_TOKEN_BUDGET ({settings.max_token_budget}) or "
        f"PACELINE_ENGINE_MAX_BATCH_SIZE ({settings.max_batch_size})."
    )
