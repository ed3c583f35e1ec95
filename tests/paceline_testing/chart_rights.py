"""The rights that the chart gives its operator, as manifests."""

from pathlib import Path
from typing import Any

import yaml
from helm_python.chart import Chart

from paceline_api.labels import Manifest

_CHART = Path(__file__).parents[2] / "charts" / "paceline"
_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def chart_rights(name: str, namespace: str, **values: Any) -> list[Manifest]:
    """Render the service account of a release, its roles and their bindings."""
    rendered = Chart.load(_CHART).render(values, name=name, namespace=namespace)
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text) if document]
    return [document for document in documents if document["kind"] in _KINDS]
