"""What Prometheus reads at `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .freshness import QUANTILES, quantile
from .ledger import Entry

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counters of one warehouse, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "millstream_requests_total", "Requests answered.", ("method", "status"), registry=registry
        )
        self._rows = Counter("millstream_rows_total", "Rows committed.", ("flow", "table"), registry=registry)
        self._bytes = Counter(
            "millstream_bytes_total", "Bytes of parts committed.", ("flow", "table"), registry=registry
        )
        self._commits = Counter(
            "millstream_commits_total", "Batches: committed or duplicate.", ("table", "outcome"), registry=registry
        )
        self._seconds = Histogram(
            "millstream_commit_seconds", "Time to load a batch.", ("table",), buckets=_SECONDS, registry=registry
        )
        self._freshness = Gauge(
            "millstream_freshness_seconds",
            "Seconds from capture to commit in the last batch.",
            ("flow", "table", "quantile"),
            registry=registry,
        )
        self._last = Gauge(
            "millstream_last_commit_timestamp_seconds",
            "When the last batch came.",
            ("flow", "table"),
            registry=registry,
        )

    def watch(self, **gauges: Callable[[], float]) -> None:
        """Add gauges whose value is asked for at each reading."""
        for name, value in gauges.items():
            Gauge(
                f"millstream_{name}", name.replace("_", " ").capitalize() + ".", registry=self._registry
            ).set_function(value)

    def answered(self, method: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(method, str(status)).inc()

    def duplicate(self, table: str) -> None:
        """Count a commit that was there already."""
        self._commits.labels(table, "duplicate").inc()

    def committed(self, entry: Entry) -> None:
        """Count a batch."""
        self._rows.labels(entry.flow, entry.table).inc(entry.rows)
        self._bytes.labels(entry.flow, entry.table).inc(entry.bytes)
        self._commits.labels(entry.table, "committed").inc()
        self._seconds.labels(entry.table).observe(entry.seconds)
        self._last.labels(entry.flow, entry.table).set(entry.committed_at.timestamp())
        for share in QUANTILES:
            seconds = quantile(entry.lags, share)
            if seconds is not None:
                self._freshness.labels(entry.flow, entry.table, f"{share:g}").set(seconds)

    def text(self) -> bytes:
        """All of it, in the text format of Prometheus."""
        return generate_latest(self._registry)
