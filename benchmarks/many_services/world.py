"""A control plane, the chart's rights, and one operator with them."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from local_cluster.cluster import Cluster
from local_cluster.start import control_plane
from many_services.calls import count
from many_services.usage import Usage, usage
from paceline_testing.chart_rights import chart_rights
from paceline_testing.job_pods import as_account
from paceline_testing.releases import serves
from paceline_testing.running_operator import RunningOperator, running_operator
from paceline_testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
HOME = "paceline-system"
# The audit log is written a moment after the answer.
_LOGGED_S = 1.0


@dataclass(frozen=True, slots=True)
class World:
    """What a scene needs to know of the operator from outside."""

    admin: Cluster
    limited: Cluster
    account: str
    """Its name; the chart calls the Lease by it."""
    folder: Path

    @contextmanager
    def operator(self) -> Iterator[RunningOperator]:
        """Run one as the chart does: every namespace, its own settings."""
        with running_operator(
            self.limited,
            HOME,
            self.folder,
            is_namespaced=False,
            settings={
                "PACELINE_OPERATOR_RESYNC_S": "60",
                "PACELINE_OPERATOR_LEASE_NAME": self.account,
            },
        ) as operator:
            yield operator

    def calls(self, since: float, until: float) -> Counter[str]:
        """Count its requests between two times, by verb and resource."""
        time.sleep(_LOGGED_S)
        assert self.admin.audit_log is not None
        user = f"system:serviceaccount:{HOME}:{self.account}"
        with self.admin.audit_log.open() as lines:
            return count(lines, account=user, since=since, until=until)


@contextmanager
def world(namespaces: list[str]) -> Iterator[World]:
    """Start it, with namespaces for the services."""
    with ExitStack() as stack:
        admin = stack.enter_context(control_plane())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        admin.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        wait_until(lambda: serves(admin), within_s=120)
        made = [_namespace(name) for name in (HOME, *namespaces)]
        rights = chart_rights("many", HOME)
        admin.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([*made, *rights]))
        (account,) = (found for found in rights if found["kind"] == "ServiceAccount")
        name = account["metadata"]["name"]
        limited = as_account(admin, HOME, name, folder)
        yield World(admin, limited, name, folder)


def _namespace(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def used(operator: RunningOperator) -> Usage:
    """Read the operator's process."""
    return usage(operator.pid)
