"""What staging counts, in the words of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from .stream import Stream

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Counters of one staging area."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._records = self._counter("records", "records stored", "stream")
        self._bytes = self._counter("bytes", "bytes stored", "stream")
        self._blocks = self._counter("blocks", "blocks stored", "stream")
        self._repeated = self._counter("repeated_records", "records that came again and were not stored", "stream")
        self._refused = self._counter("refused", "requests refused", "error")
        self._cut = self._counter("cut_bytes", "bytes of unacknowledged tails that recovery cut off", "stream")
        self._sent = self._counter("records_read", "records given to readers", "stream")
        self.acknowledged = Histogram(
            "millstream_staging_acknowledgement_seconds",
            "from the arrival of a block until it is durable",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.sessions = Gauge("millstream_staging_sessions", "sessions that are open", registry=self.registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"millstream_staging_{name}", text, [label], registry=self.registry)

    def stored(self, stream: str, *, records: int, size: int) -> None:
        self._records.labels(stream).inc(records)
        self._bytes.labels(stream).inc(size)
        self._blocks.labels(stream).inc()

    def repeated(self, stream: str, records: int) -> None:
        self._repeated.labels(stream).inc(records)

    def refused(self, problem: Exception) -> None:
        self._refused.labels(type(problem).__name__).inc()

    def recovered(self, stream: str, cut: int) -> None:
        self._cut.labels(stream).inc(cut)

    def read(self, stream: str, records: int) -> None:
        self._sent.labels(stream).inc(records)

    def watch(self, streams: Callable[[], Iterable[Stream]]) -> None:
        """Report the positions of these streams too."""
        self.registry.register(_Positions(streams))

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _Positions(Collector):
    """Ends of streams and backlogs of flows, as they are when asked for."""

    def __init__(self, streams: Callable[[], Iterable[Stream]]) -> None:
        self._streams = streams

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        size = GaugeMetricFamily("millstream_staging_log_bytes", "bytes of the log", labels=["stream"])
        end = GaugeMetricFamily("millstream_staging_end", "position after the last durable record", labels=["stream"])
        backlog = GaugeMetricFamily(
            "millstream_staging_backlog_records", "records that a flow has not consumed", labels=["stream", "flow"]
        )
        for stream in self._streams():
            told = stream.describe()
            size.add_metric([stream.name], told["bytes"])
            end.add_metric([stream.name], told["end"])
            for flow, position in told["flows"].items():
                backlog.add_metric([stream.name, flow], told["end"] - position)
        yield from (size, end, backlog)
