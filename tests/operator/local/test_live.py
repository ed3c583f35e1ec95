"""What happens to the local service is noted once, in a sentence."""

from pathlib import Path

from paceline_operator.local.live import LiveService
from paceline_operator.local.settings import Place
from paceline_operator.tuning.model import PodAdapter, ServiceReport
from paceline_testing.reports import a_pod_report, a_report
from paceline_testing.services import a_service


def _report(*adapters: PodAdapter) -> ServiceReport:
    return a_report(pods=(a_pod_report(adapters=adapters),))


def test_an_adapter_is_noted_when_it_comes_and_when_it_is_refused(tmp_path: Path) -> None:
    """Not in every tick, and not while it is on its way."""
    live = LiveService(
        tmp_path / "service.yaml", a_service(), Place(tmp_path, "127.0.0.1", 1, 2), "token"
    )
    notes: list[str] = []
    live.on_event.append(notes.append)
    sql = PodAdapter("sql", "/a", "loaded")

    live.concluded(_report(PodAdapter("sql", "/a", "loading")), ())
    live.concluded(_report(sql), ())
    live.concluded(_report(sql), ())
    live.concluded(_report(sql, PodAdapter("law", "/b", "refused", "its rank is 64.")), ())

    assert notes == ["adapter sql is served", "adapter law was refused: its rank is 64."]
