"""What client and server say to each other over Flight besides blocks: small JSON objects, and errors by name."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from .. import errors
from ..errors import InputError, MillstreamError, StagingUnavailable

# errors that may cross the wire, with the kind of Flight error that fits best
_CARRIED: dict[str, type[flight.FlightError]] = {
    "AccessDenied": flight.FlightUnauthorizedError,
    "StagingUnavailable": flight.FlightUnavailableError,
    "StagingBusy": flight.FlightUnavailableError,
    "StagingFull": flight.FlightUnavailableError,
    **dict.fromkeys(
        (
            "BlockDamaged",
            "BlockRefused",
            "BlockTooLarge",
            "CorruptLog",
            "InputError",
            "NameRefused",
            "PositionGone",
            "RecordGap",
            "SchemaRefused",
            "StagingFailed",
            "UnknownStream",
            "UnsupportedType",
        ),
        flight.FlightServerError,
    ),
}
_LONGEST = 1 << 20

END = b"end"  # instead of a block: the client sends no more


def pack(message: dict[str, Any]) -> bytes:
    """A message as bytes."""
    return json.dumps(message, separators=(",", ":")).encode()


def unpack(content: bytes | pa.Buffer | None, *, what: str = "message") -> dict[str, Any]:
    """The message in some bytes, which may come from anybody."""
    raw = b"" if content is None else bytes(content)
    try:
        if len(raw) > _LONGEST:
            raise ValueError
        message = json.loads(raw)
        if not isinstance(message, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise InputError(f"a {what} that is no JSON object of at most {_LONGEST:,} bytes") from None
    return message


def to_flight(problem: MillstreamError) -> flight.FlightError:
    """An error of ours as one that Flight carries, with name and details beside the text."""
    kind = type(problem).__name__
    plain = {name: value for name, value in problem.details.items() if isinstance(value, int | str | list)}
    return _CARRIED.get(kind, flight.FlightServerError)(problem.message, pack({"error": kind, "details": plain}))


def from_flight(problem: BaseException, *, url: str) -> MillstreamError:
    """The error of ours that Flight has carried; anything else means that staging could not be reached."""
    extra = getattr(problem, "extra_info", None)
    if extra:
        try:
            known = unpack(extra)
        except InputError:
            known = {}
        if known.get("error") in _CARRIED and isinstance(known.get("details"), dict):
            # Flight puts words of its own behind the message
            text = str(problem).partition(". Detail:")[0].partition(". gRPC client debug context")[0]
            return getattr(errors, known["error"])(text, **known["details"])
    if isinstance(problem, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return errors.AccessDenied(f"staging at {url} refuses the token; set MILLSTREAM_TOKEN or give the right one")
    why = (str(problem).splitlines() or [""])[0].partition(". gRPC client debug context")[0]
    return StagingUnavailable(f"staging at {url} cannot be reached: {why[:200]}")
