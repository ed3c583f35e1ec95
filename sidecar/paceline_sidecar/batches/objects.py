"""Files and batches as OpenAI shows them, and what the disk holds of a batch.

The state of a batch is derived from what was written of it: a record when it was made, then that
it was started, that somebody cancelled it, and how it ended. Each is written once, whole.
"""

from typing import Annotated, Literal

import msgspec
from pydantic import Field

from paceline_sidecar.openai.body import BodyPart

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
EndStatus = Literal["completed", "failed", "expired", "cancelled"]
Status = Literal["validating", "in_progress", "cancelling"] | EndStatus


class BatchRequest(BodyPart):
    """`POST /v1/batches`."""

    input_file_id: str
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None


class FileObject(msgspec.Struct, frozen=True):
    """A file: the requests of a batch, or what came of them."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"
    expires_at: None = None


class DeletedFile(msgspec.Struct, frozen=True):
    """The answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class InputError(msgspec.Struct, frozen=True):
    """What is wrong with a line of the input."""

    code: str
    message: str
    line: int | None
    param: str | None = None


class InputErrors(msgspec.Struct, frozen=True):
    """`errors` of a batch that failed before it ran."""

    data: list[InputError]
    object: Literal["list"] = "list"


class Counts(msgspec.Struct, frozen=True):
    """`request_counts`."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True):
    """A batch, as a client sees it."""

    id: str
    endpoint: BatchEndpoint
    errors: InputErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: Counts
    metadata: dict[str, str] | None
    object: Literal["batch"] = "batch"


class FilePage(msgspec.Struct, frozen=True):
    """A page of files."""

    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class BatchPage(msgspec.Struct, frozen=True):
    """A page of batches."""

    data: list[Batch]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class Record(msgspec.Struct, frozen=True):
    """What is known of a batch from the beginning."""

    id: str
    endpoint: BatchEndpoint
    input_file_id: str
    output_file_id: str
    error_file_id: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None
    caller_name: str
    caller_id: str


class Started(msgspec.Struct, frozen=True):
    """The input was read and found good."""

    total: int
    at: int


class Cancelled(msgspec.Struct, frozen=True):
    """Somebody asked for its end."""

    at: int


class Ended(msgspec.Struct, frozen=True):
    """Nothing is computed for it any more."""

    status: EndStatus
    at: int
    completed: int = 0
    failed: int = 0
    errors: list[InputError] = []


class InputLine(msgspec.Struct, frozen=True):
    """One line of the input."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class Answered(msgspec.Struct, frozen=True):
    """`response` of a line of the output."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    """`error` of a line that was never computed."""

    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True):
    """One line of the output, or of the errors."""

    id: str
    custom_id: str
    response: Answered | None
    error: LineError | None = None


def shown(
    record: Record,
    started: Started | None,
    cancelled: Cancelled | None,
    ended: Ended | None,
    counts: Counts,
) -> Batch:
    """Derive what a client sees."""
    status: Status = "validating" if started is None else "in_progress"
    if cancelled is not None:
        status = "cancelling"
    at: dict[str, int] = {}
    if ended is not None:
        status = ended.status
        at[ended.status] = ended.at
        counts = Counts(started.total if started else 0, ended.completed, ended.failed)
    has_output, has_errors = bool(ended and counts.completed), bool(ended and counts.failed)
    return Batch(
        id=record.id,
        endpoint=record.endpoint,
        errors=InputErrors(ended.errors) if ended and ended.errors else None,
        input_file_id=record.input_file_id,
        completion_window="24h",
        status=status,
        output_file_id=record.output_file_id if has_output else None,
        error_file_id=record.error_file_id if has_errors else None,
        created_at=record.created_at,
        in_progress_at=started.at if started else None,
        expires_at=record.expires_at,
        finalizing_at=ended.at if ended and started else None,
        completed_at=at.get("completed"),
        failed_at=at.get("failed"),
        expired_at=at.get("expired"),
        cancelling_at=cancelled.at if cancelled else None,
        cancelled_at=at.get("cancelled"),
        request_counts=counts,
        metadata=record.metadata,
    )
