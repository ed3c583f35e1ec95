"""`python -m paceline_operator.definition`: bring the cluster's definition to this version.

The chart runs it once before an upgrade, where the installed definition is another than the
chart's: Helm installs what is in `crds/` and never touches it again (docs/decisions/0048).
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

from kubernetes.aio.client import ApiextensionsV1Api

from paceline_api.labels import Manifest
from paceline_api.schema import definition
from paceline_operator.kubernetes_api import connect

logger = logging.getLogger(__name__)


def upgraded(installed: Manifest, ours: Manifest) -> Manifest:
    """Return the installed definition with our spec; what others wrote in its metadata stays."""
    annotations = installed["metadata"].get("annotations", {}) | ours["metadata"]["annotations"]
    return {
        **installed,
        "metadata": {**installed["metadata"], "annotations": annotations},
        "spec": ours["spec"],
    }


def unknown_to(ours: Manifest, installed: Manifest) -> list[str]:
    """Return the fields that only the installed definition has: it is newer than ours."""
    return sorted(set(_fields(installed)) - set(_fields(ours)))


def _fields(manifest: Manifest) -> Iterator[str]:
    """Name every field of every version, `v1alpha1.spec.model.uri`."""
    for version in manifest["spec"]["versions"]:
        yield version["name"]
        yield from _below(version["schema"]["openAPIV3Schema"], version["name"])


def _below(schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _below(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        inner = schema.get(key)
        if isinstance(inner, dict):
            yield from _below(inner, f"{path}[]")


async def upgrade() -> None:
    """Replace the installed definition, unless it is ours already or newer.

    An ApiException ends the process: the hook fails, and with it the upgrade, before any object
    of the release has changed.
    """
    ours = definition()
    name = ours["metadata"]["name"]
    async with await connect() as api:
        definitions = ApiextensionsV1Api(api)
        answer = await definitions.read_custom_resource_definition_without_preload_content(name)
        installed: Manifest = json.loads(await answer.read())
        newer = unknown_to(ours, installed)
        if newer:
            logger.warning("%s stays: this version does not know its %s", name, ", ".join(newer))
            return
        body: Any = upgraded(installed, ours)  # the client sends an object as it is
        await definitions.replace_custom_resource_definition(name, body)
        logger.info("%s is upgraded", name)


def main() -> None:
    """Upgrade it and end."""
    logging.basicConfig(level="INFO", format="%(message)s")
    asyncio.run(upgrade())


if __name__ == "__main__":
    main()
