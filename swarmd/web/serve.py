"""Puts the web view and the metrics on their addresses, inside the daemon's own loop.

Sockets are opened before anything else, so that an address that is taken is an error of the start
and not of some later moment. A server that fails (a mistake in it, not in a request) is started
again; it never ends the daemon.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app
from starlette.applications import Starlette

from swarmd.errors import UserError
from swarmd.home import Home
from swarmd.json_record import Record, render
from swarmd.settings import HostPort
from swarmd.web.access import Access, is_loopback, load_or_make_token
from swarmd.web.app import Sources, metrics_app, view_app
from swarmd.web.history import History

log = logging.getLogger("swarmd.web")

TOKEN_FILE = "web.token"
AGAIN_S = 5.0
GRACE_S = 0.5
READ_S = 10
BACKLOG = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the daemon lets others look at. Called in the trio thread."""

    status: Callable[[], Record]
    peers: Callable[[], Record]
    events: Callable[[int], list[dict[str, Any]]]


class WebServers:
    """Of one daemon. `open` first (it may raise UserError), then `run` until cancelled."""

    def __init__(self, home: Home, shown: Shown, *, say: Callable[[str], None]) -> None:
        self._home = home
        self._say = say
        self._history = History()
        self._shown = shown
        self._sources = Sources(
            status=lambda: render(shown.status()),
            peers=lambda: render(shown.peers()),
            events=shown.events,
            history=self._history,
        )
        self._servers: list[tuple[str, Starlette, Config, Any]] = []
        self.addresses: dict[str, str] = {}
        """`web` and `metrics` to the address that is really used."""

    def open(self, *, web: HostPort | None, metrics: HostPort | None) -> None:
        """Listen. Raises UserError where an address cannot be had."""
        if metrics is not None:
            access = Access(is_loopback(metrics.host))
            address = self._listen("metrics", metrics, metrics_app(self._sources, access))
            self._say(f"metrics  http://{address}/metrics{_beyond(access)}")
        if web is not None:
            self._open_view(web)

    def _open_view(self, web: HostPort) -> None:
        file = self._home.state / TOKEN_FILE
        token, is_new, is_local = None, False, is_loopback(web.host)
        if not is_local:
            token, is_new = load_or_make_token(file)
        access = Access(is_local, token)
        address = self._listen("web", web, view_app(self._sources, access))
        link = f"http://{address}/"
        if is_new:
            link += f"?token={token}"  # once; afterwards it can be read from the file
        self._say(f"web view {link}{_beyond(access)}")
        if token is not None:
            self._say(f"its token is in {file}")

    def _listen(self, name: str, wanted: HostPort, app: Starlette) -> str:
        config = Config()
        config.bind = [str(wanted)]
        config.accesslog, config.errorlog = None, logging.getLogger("swarmd.web.server")
        config.graceful_timeout, config.backlog = GRACE_S, BACKLOG
        config.read_timeout, config.include_server_header = READ_S, False
        try:
            sockets = config.create_sockets()
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise UserError(
                f"--{name} {wanted}: {error.strerror or error}",
                code="address_in_use" if taken else "address_unusable",
                exit_code=75 if taken else 2,
                hint="another port, or 0 for any free one",
            ) from error
        for listener in sockets.insecure_sockets:
            listener.listen(BACKLOG)
        port = sockets.insecure_sockets[0].getsockname()[1]
        self.addresses[name] = str(HostPort(wanted.host, port))
        config.bind = [self.addresses[name]]
        self._servers.append((name, app, config, sockets))
        log.info("serves name=%s address=%s", name, self.addresses[name])
        return self.addresses[name]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for name, app, config, sockets in self._servers:
                nursery.start_soon(self._keep_serving, name, app, config, sockets)
            if "web" in self.addresses:
                nursery.start_soon(self._take_points)

    async def _keep_serving(self, name: str, app: Starlette, config: Config, sockets: Any) -> None:
        while True:
            asgi = wrap_app(app, config.wsgi_max_body_size, "asgi")
            try:
                await worker_serve(asgi, config, sockets=sockets, shutdown_trigger=_never)
            except* Exception:
                log.exception("server_failed name=%s", name)
            sockets = None  # closed by now; the next ones are opened where these were
            await trio.sleep(AGAIN_S)

    async def _take_points(self) -> None:
        begun_s = trio.current_time()
        while True:
            self._history.add(render(self._shown.status()), trio.current_time() - begun_s)
            await trio.sleep(self._history.interval_s)


async def _never() -> None:
    await trio.sleep_forever()


def _beyond(access: Access) -> str:
    return "" if access.is_loopback else "   (others can reach this address)"
