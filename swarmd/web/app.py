"""The pages as an ASGI application. Reads what the control socket answers, and changes nothing.

Every answer forbids to be framed, cached or guessed at, and the page may load nothing but its own
two files: names and texts of other peers are shown, so nothing that they contain may ever run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from swarmd.metrics_text import metrics_text
from swarmd.web.access import COOKIE, Access
from swarmd.web.history import History

AT_ONCE_MAX = 32
"""Requests; further ones are told to come again."""
FRESH_S = 0.5
"""However many look, a status is made at most so often."""
EVENTS_SHOWN = 40
PAGE_FILES = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Ask = Callable[[], Mapping[str, Any]]
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the answers come from: JSON objects, as the control socket gives them."""

    status: Ask
    peers: Ask
    events: Callable[[int], list[dict[str, Any]]]
    history: History


class Fresh:
    """An answer that is kept for a moment."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._found: Mapping[str, Any] = {}
        self._until_s = float("-inf")

    def __call__(self) -> Mapping[str, Any]:
        now_s = trio.current_time()
        if now_s >= self._until_s:
            self._found, self._until_s = self._ask(), now_s + FRESH_S
        return self._found


def view_app(sources: Sources, access: Access) -> Starlette:
    """The web view."""
    status, peers = Fresh(sources.status), Fresh(sources.peers)
    asked: dict[str, Callable[[], Any]] = {
        "/api/status": status,
        "/api/peers": peers,
        "/api/history": lambda: {"points": sources.history.points()},
        "/api/events": lambda: {"events": sources.events(EVENTS_SHOWN)},
    }
    guard = Guard(access)
    routes = [_route(path, guard.around(_json(ask))) for path, ask in asked.items()]
    for name, kind in PAGE_FILES.items():
        path = "/" if name == "index.html" else f"/{name}"
        routes.append(_route(path, guard.around(_file(name, kind))))
    return Starlette(routes=routes)


def metrics_app(sources: Sources, access: Access) -> Starlette:
    """Prometheus text, and whether the peer is well."""
    status, peers = Fresh(sources.status), Fresh(sources.peers)

    async def metrics(request: Request) -> Response:
        return Response(metrics_text(status(), peers()), media_type=METRICS_TYPE)

    async def healthz(request: Request) -> Response:
        level = (status().get("health") or {}).get("level", "ok")
        return PlainTextResponse(f"{level}\n", 503 if level == "bad" else 200)

    guard = Guard(access)
    return Starlette(
        routes=[
            _route("/metrics", guard.around(metrics)),
            _route("/healthz", guard.around(healthz)),
        ]
    )


class Guard:
    """Checks every request, and bounds how many are answered at once."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._now = 0

    def around(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            why_not = self._access.why_not(request.headers, request.query_params, request.cookies)
            if why_not is not None:
                return PlainTextResponse(f"{why_not}\n", 403, HEADERS)
            if self._now >= AT_ONCE_MAX:
                return PlainTextResponse("too many look at once\n", 503, HEADERS)
            self._now += 1
            try:
                response = self._remembered(request) or await handler(request)
            finally:
                self._now -= 1
            response.headers.update(HEADERS)
            return response

        return guarded

    def _remembered(self, request: Request) -> Response | None:
        """A link with the token becomes a cookie, so that the token leaves the address line."""
        token = request.query_params.get("token")
        if self._access.token is None or token is None or request.method != "GET":
            return None
        answer = RedirectResponse(request.url.path, 303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
        return answer


def _route(path: str, handler: Handler) -> Route:
    return Route(path, handler, methods=["GET"])


def _json(ask: Callable[[], Any]) -> Handler:
    async def answer(request: Request) -> Response:
        return JSONResponse(ask())

    return answer


def _file(name: str, kind: str) -> Handler:
    body = (files("swarmd.web") / "page" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(body, media_type=kind)

    return answer
