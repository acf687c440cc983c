"""Flows on Spark: what `millstream.flow` describes, analysed and run."""

from .flow import Flow
from .queues import QueuedFlow
from .run import BatchReport
from .start import FlowQuery

__all__ = ["BatchReport", "Flow", "FlowQuery", "QueuedFlow"]
