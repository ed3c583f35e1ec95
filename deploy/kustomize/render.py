"""The chart's objects and the definition for Kustomize: `python deploy/kustomize/render.py FOLDER`.

Needs the developer tools (`make kustomize`).
"""

import sys
from pathlib import Path
from typing import Any

import yaml
from helm_python.chart import Chart

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "paceline"
DEFINITION = ROOT / "crds" / "inferenceservices.yaml"
NAMESPACE = "paceline-system"
HEADER = (
    "# Rendered from charts/paceline by `make kustomize`: do not edit, patch it in an overlay.\n"
)
HELMS_OWN = ("helm.sh/chart", "app.kubernetes.io/managed-by")


def objects() -> list[dict[str, Any]]:
    """Render the chart with its defaults, for every namespace."""
    texts = Chart.load(CHART).render({}, name="paceline", namespace=NAMESPACE)
    documents = (yaml.safe_load_all(text) for path, text in texts.items() if path.endswith(".yaml"))
    found = [document for group in documents for document in group if document]
    for document in found:
        _forget_helm(document)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    return [namespace, *sorted(found, key=lambda one: (one["kind"], one["metadata"]["name"]))]


def _forget_helm(part: Any) -> None:
    """Drop the labels that only a release of Helm's may carry."""
    if isinstance(part, dict):
        for label in HELMS_OWN:
            part.get("labels", {}).pop(label, None)
        for inner in part.values():
            _forget_helm(inner)
    if isinstance(part, list):
        for inner in part:
            _forget_helm(inner)


def main(folder: Path) -> None:
    """Write both files."""
    text = HEADER + yaml.safe_dump_all(objects(), sort_keys=False, width=100)
    (folder / "operator.yaml").write_text(text, encoding="utf-8")
    (folder / DEFINITION.name).write_text(DEFINITION.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
