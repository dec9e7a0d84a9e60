"""What a service manager is told (systemd's notification protocol). Nothing, where there is none.

    READY=1       the control socket answers; with or without a network
    STATUS=...    state, reason and ETA, when they change
    WATCHDOG=1    only while the loop that does the work goes on: events were handled since the last
    STOPPING=1    the first signal, or the end

The variables are taken out of the environment, so that no child speaks in our name.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, MutableMapping

import trio

from swarmd.protocols.reasons import Reason

log = logging.getLogger("swarmd.daemon")

LOOK_S = 1.0
BEATS_A_WATCHDOG = 4
"""So many chances to say that all is well before it would be restarted."""
STATUS_CHARS_MAX = 400


class ServiceManager:
    """`tell` never fails: whoever does not listen loses."""

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        self._address = _address(env.pop("NOTIFY_SOCKET", ""))
        pid, usec = env.pop("WATCHDOG_PID", ""), env.pop("WATCHDOG_USEC", "")
        is_ours = pid in ("", str(os.getpid()))
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and is_ours else None

    @property
    def is_there(self) -> bool:
        return self._address is not None

    def tell(self, **fields: str) -> None:
        """READY="1", STATUS="..."; one datagram."""
        if self._address is None:
            return
        text = "\n".join(f"{name}={' '.join(value.split())}" for name, value in fields.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as plain:
                plain.setblocking(False)
                plain.sendto(text.encode(), self._address)
        except OSError as error:
            log.warning("service_manager_not_told error=%s", error)

    async def keep_told(self, reason: Callable[[], Reason], beats: Callable[[], int]) -> None:
        """Until cancelled. beats: a count that rises as long as the work goes on."""
        if self._address is None:
            return
        said, seen, fed_s = "", -1, float("-inf")
        while True:
            text = status_text(reason(), trio.current_time())
            if text != said:
                self.tell(STATUS=text)
                said = text
            now_s, count = trio.current_time(), beats()
            every_s = (self.watchdog_s or 0.0) / BEATS_A_WATCHDOG
            if self.watchdog_s and count != seen and now_s - fed_s >= every_s:
                self.tell(WATCHDOG="1")
                seen, fed_s = count, now_s
            await trio.sleep(min(LOOK_S, every_s or LOOK_S))


def status_text(reason: Reason, now_s: float) -> str:
    """`waiting: stage 3 has no peer (waiting_for_stage), about 2 min left`. In minutes, so that it
    does not change every second."""
    text = f"{reason.state}: {reason.text} ({reason.code})"
    if reason.eta_at_s is not None:
        minutes = round((reason.eta_at_s - now_s) / 60)
        if minutes > 0:
            about = "at most" if reason.eta_basis == "deadline" else "about"
            text += f", {about} {minutes} min left"
    return text[:STATUS_CHARS_MAX]


def _address(name: str) -> str | None:
    """A path, or with `@` a name that is in no folder."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None
