"""Who may do what: one token for everything, and one for each source that may only send as itself."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import AccessDenied, InputError
from .names import check_name

_SHORTEST = 8


@dataclass(frozen=True)
class Identity:
    """Whom a token belongs to: a source, or (None) somebody who may do everything."""

    source: str | None = None

    def check_source(self, source: object) -> str:
        """The name of the source, if this token may send as it."""
        name = check_name(source, what="source")
        if self.source not in (None, name):
            raise AccessDenied(f"this token is that of source {self.source}, not of {name}")
        return name

    def check_all(self) -> None:
        """Refuse a token that is only for sending."""
        if self.source is not None:
            raise AccessDenied(f"the token of source {self.source} is for sending; reading needs the token of staging")


@dataclass(frozen=True)
class Access:
    """The tokens; without any, whoever can connect may do everything."""

    token: str | None = field(default=None, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for source in self.sources:
            check_name(source, what="source")
        for token in (*([self.token] if self.token is not None else []), *self.sources.values()):
            if not isinstance(token, str) or len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
                raise InputError(f"a token has at least {_SHORTEST} printable ASCII characters")
        if self.sources and self.token is None:
            raise InputError("tokens of sources need a token of staging beside them, for flows and for you")

    @property
    def open(self) -> bool:
        return self.token is None

    def identify(self, authorization: str | None) -> Identity:
        """Whose token stands in an `Authorization: Bearer ...` header; all tokens are compared, in constant time."""
        if self.token is None:
            return Identity()
        kind, _, given = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not given:
            raise AccessDenied("a token is needed: send the header 'Authorization: Bearer TOKEN'")
        raw = given.encode("utf-8", "replace")
        found = Identity() if hmac.compare_digest(raw, self.token.encode()) else None
        for source, token in self.sources.items():
            if hmac.compare_digest(raw, token.encode()):
                found = found or Identity(source)
        if found is None:
            raise AccessDenied("this token is not known here")
        return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach such an address."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        raise InputError(f"{host!r} is no address of this machine") from None
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
