"""Who may look. Pure: from a request's headers to yes or why not.

On a loopback address everybody on this machine may; the name that was asked for must be loopback,
too, so that a page from elsewhere whose name was bent to 127.0.0.1 learns nothing. On any other
address a token is needed, given once in the link and then kept by the browser as a cookie. A
request that a page of another origin made is refused everywhere.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swarmd.store import read_bytes, write_bytes

COOKIE = "swarmd_token"
TOKEN_BYTES = 24
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class Access:
    """The rule of one address. token None: none is needed."""

    is_loopback: bool
    token: str | None = None

    def why_not(
        self, headers: Mapping[str, str], query: Mapping[str, str], cookies: Mapping[str, str]
    ) -> str | None:
        """None: may look. Header names are in small letters."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return "asked by a page of another origin"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "asked by a page of another origin"
        if self.is_loopback and _without_port(host) not in _LOOPBACK_NAMES:
            return f"{host} is no name of this machine's loopback"
        if self.token is None:
            return None
        bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
        given = query.get("token") or cookies.get(COOKIE) or bearer
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return "the token is missing or wrong"
        return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def load_or_make_token(file: Path) -> tuple[str, bool]:
    """(token, whether it is new). Kept with mode 0600, so that bookmarks outlive a restart."""
    body = read_bytes(file, bytes_max=256)
    if body is not None and len(body.strip()) >= TOKEN_BYTES:
        return body.strip().decode("ascii", "replace"), False
    token = secrets.token_urlsafe(TOKEN_BYTES)
    write_bytes(file, token.encode() + b"\n")
    return token, True
