"""From a row of `names` and its values to what prometheus-client exposes."""

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from paceline_sidecar.metrics.histogram import Histogram
from paceline_sidecar.metrics.names import Metric

Labels = tuple[str, ...]


def values(metric: Metric, rows: Iterable[tuple[Labels, float | None]]) -> Family:
    """A gauge or a counter; a value of None is not exposed."""
    kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in rows:
        if value is not None:
            family.add_metric(labels, value)
    return family


def histograms(metric: Metric, rows: Iterable[tuple[Labels, Histogram]]) -> Family:
    """A histogram for each set of labels."""
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, histogram in rows:
        family.add_metric(labels, histogram.cumulative(), histogram.total)
    return family
