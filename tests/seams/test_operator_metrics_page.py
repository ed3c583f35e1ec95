"""docs/metrics.md lists the operator's metrics as they are exposed."""

import re
from pathlib import Path

from paceline_operator.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(paceline_[a-z_]+)` \| (\w+) \|.*\| (.+) \|$", re.MULTILINE)
ENDINGS = {"counter": "_total", "info": "_info"}


def test_the_page_lists_exactly_the_operators_metrics() -> None:
    """Name, type and meaning."""
    families = Metrics().registry.collect()
    exposed = {
        (f"{family.name}{ENDINGS.get(family.type, '')}", family.type, family.documentation)
        for family in families
    }

    section = PAGE.read_text().partition("\n## `paceline_operator_*`\n")[2].partition("\n## ")[0]
    assert set(ROW.findall(section)) == exposed
