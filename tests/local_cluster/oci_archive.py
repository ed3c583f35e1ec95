"""One root file system, packed as an OCI image that containerd imports."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


def pack(*, rootfs: bytes, name: str, config: Mapping[str, Any], out: Path) -> None:
    """Write an OCI archive of one layer; `config` is the image's (Env, Entrypoint, ...)."""
    blobs: dict[str, bytes] = {}

    def put(media_type: str, blob: bytes) -> dict[str, Any]:
        sha256 = hashlib.sha256(blob).hexdigest()
        blobs[sha256] = blob
        return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": len(blob)}

    layer = put(_LAYER, rootfs)
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": put(_CONFIG, json.dumps(image).encode()),
        "layers": [layer],
    }
    entry = put(_MANIFEST, json.dumps(manifest).encode())
    index = {
        "schemaVersion": 2,
        "manifests": [{**entry, "annotations": {"io.containerd.image.name": name}}],
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(index).encode(),
        **{f"blobs/sha256/{sha256}": blob for sha256, blob in blobs.items()},
    }
    with tarfile.open(out, "w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
