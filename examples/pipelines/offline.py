"""Post a file of requests to a service's batch endpoint, wait for its end, and write the answers.

Made for a Kubernetes Job: a pod that is started again finds the batch of its name and waits for
that one, and the exit status is 1 unless every line was answered.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from openai import APIConnectionError, InternalServerError, OpenAI
from openai.types import Batch

ENDED = {"completed", "failed", "expired", "cancelled"}


def begun(service: OpenAI, name: str, requests: Path) -> Batch:
    """Return the batch of this name, begun now unless it is there."""
    for batch in service.batches.list():
        if (batch.metadata or {}).get("name") == name:
            return batch
    file = service.files.create(file=requests, purpose="batch")
    return service.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"name": name},
    )


def ended(service: OpenAI, batch: Batch, poll_s: float) -> Batch:
    """Wait for a batch to end; a pod that is away for a while does not matter."""
    while batch.status not in ENDED:
        time.sleep(poll_s)
        try:
            batch = service.batches.retrieve(batch.id)
        except (APIConnectionError, InternalServerError) as error:
            print(f"asking again in {poll_s:g} s: {error}", file=sys.stderr)
    return batch


def main() -> int:
    """Run one file of requests; answers lie beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="A service's /v1.")
    parser.add_argument("--name", required=True, help="Names this run; run again, it goes on.")
    parser.add_argument("--poll", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("requests", type=Path, help="A line a request, as the batch API has it.")
    given = parser.parse_args()
    service = OpenAI(
        base_url=given.url, api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=10
    )

    batch = ended(service, begun(service, given.name, given.requests), given.poll)

    for kind, file_id in (("answers", batch.output_file_id), ("errors", batch.error_file_id)):
        if file_id is not None:
            content = service.files.content(file_id).read()
            given.requests.with_suffix(f".{kind}.jsonl").write_bytes(content)
    counts = batch.request_counts
    num_answered, total = (counts.completed, counts.total) if counts else (0, 0)
    print(f"{batch.status}: {num_answered} of {total} answered")
    return 0 if batch.status == "completed" and num_answered == total else 1


if __name__ == "__main__":
    sys.exit(main())
