"""Tell whether an object is as it was last applied, without asking the API server.

Each child carries the digest of the manifest that it was written from. Where that is the digest of
what is to be written now, no field was dropped since; where the object also holds every field of
the manifest, nobody has changed one. Both together are what a server-side apply that changes
nothing would find out.
"""

import hashlib
import json
from typing import Any, Final

from paceline_api.inference_service import GROUP
from paceline_api.labels import Manifest

APPLIED: Final = f"{GROUP}/applied"
"""The annotation that holds the digest."""

# Changed by others without a meaning for us, or by our own last write.
_NOT_OURS: Final = ("resourceVersion", "managedFields", "generation", "selfLink")


def with_digest(manifest: Manifest) -> Manifest:
    """Add the annotation to what is to be written.

    Who owns the child is left out of the digest, so that an orphan is adopted without another
    generation; that it is owned is seen in the object.
    """
    metadata = manifest["metadata"]
    unowned = {key: value for key, value in metadata.items() if key != "ownerReferences"}
    noted = {APPLIED: digest(manifest | {"metadata": unowned})}
    annotations = (metadata.get("annotations") or {}) | noted
    return manifest | {"metadata": metadata | {"annotations": annotations}}


def holds(live: Any, wanted: Any) -> bool:
    """Whether the object has every field of the manifest, and its lists are the same length.

    What the manifest leaves empty the object may lack: the API server drops some of these.
    """
    if isinstance(wanted, dict):
        if not isinstance(live, dict):
            return live is None and not wanted
        return all(holds(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return live is None and not wanted
        return len(live) == len(wanted) and all(map(holds, live, wanted))
    return bool(live == wanted)


def essence(live: Manifest) -> Manifest:
    """Strip what changes without us: status and the server's bookkeeping."""
    metadata = {key: value for key, value in live["metadata"].items() if key not in _NOT_OURS}
    return {key: value for key, value in live.items() if key != "status"} | {"metadata": metadata}


def digest(value: Any) -> str:
    """Return the same text for what is the same in JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
