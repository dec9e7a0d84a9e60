"""How a newcomer gets the run's tokeniser: from any peer, in pieces, and by its hash alone.

Asked for before the peer takes part, since whoever holds the first stage needs it, and others may
come to hold it. One peer is asked at a time and gives the whole file; one that is silent, has none
or gives another file is left for the next. When nobody who can be reached gives it, that is told,
and the peer goes on without: it may have the file by other means, or never need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.control import (
    TokeniserPart,
    TokeniserRequest,
)
from swarmd.protocols.reasons import Reason

TIMER = "tokeniser/answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokeniserLimits:
    answer_s: float = 5.0
    """For a piece; and for a first link."""


class TokeniserFetch:
    """Ends with Emit("tokeniser_fetched", {"body": bytes, "peer": peer}) or Emit(
    "tokeniser_not_found"). hash_of: BLAKE2b-256 of bytes, in hex."""

    def __init__(
        self,
        name: str,
        entries: dict[PeerId, tuple[str, ...]],
        *,
        hash_of: Callable[[bytes], str],
        limits: TokeniserLimits,
    ) -> None:
        self._name = name
        self._entries = dict(sorted(entries.items()))
        self._hash_of = hash_of
        self._limits = limits
        self._linked: set[PeerId] = set()
        self._donor: PeerId | None = None
        self._body = bytearray()
        self._size_bytes = 0
        self._is_over = False
        self.left: dict[PeerId, str] = {}
        """Whom we do not ask again, with why: hash_mismatch, malformed, missing, silent, lost."""

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        if self._is_over:
            return []
        match event:
            case fx.Started():
                dials = [fx.Dial(peer, places) for peer, places in self._entries.items()]
                return [*dials, self._timer()]
            case fx.LinkUp(peer):
                self._linked.add(peer)
                return self._ask_somebody() if self._donor is None else []
            case fx.LinkDown(peer, _):
                self._linked.discard(peer)
                return self._leave("lost") if peer == self._donor else []
            case fx.Arrived(peer, TokeniserPart() as part) if peer == self._donor:
                return self._take(part)
            case fx.TimerFired(name) if name == TIMER:
                return self._leave("silent") if self._donor is not None else self._give_up()
        return []

    def reason(self, now_s: float) -> Reason:
        """What to show meanwhile."""
        got = f", {len(self._body)} of {self._size_bytes} bytes so far" if self._body else ""
        return Reason(code="connecting", text=f"fetching the run's tokeniser from peers{got}")

    def _take(self, part: TokeniserPart) -> list[fx.Effect]:
        if part.size_bytes == 0:
            return self._leave("missing")
        is_next = part.name == self._name and part.offset == len(self._body)
        fits = 0 < len(part.body) <= part.size_bytes - part.offset
        if not is_next or not fits or self._size_bytes not in (0, part.size_bytes):
            return self._leave("malformed")
        self._size_bytes = part.size_bytes
        self._body += part.body
        if len(self._body) < self._size_bytes:
            return self._ask()
        body = bytes(self._body)
        if self._hash_of(body) != self._name:
            return self._leave("hash_mismatch")
        self._is_over = True
        return [
            fx.ClearTimer(TIMER),
            fx.Emit("tokeniser_fetched", {"body": body, "peer": self._donor}),
        ]

    def _ask_somebody(self) -> list[fx.Effect]:
        self._body.clear()
        self._size_bytes = 0
        able = sorted(self._linked - self.left.keys())
        self._donor = able[0] if able else None
        if self._donor is not None:
            return self._ask()
        has_hope = any(peer not in self.left and peer not in self._linked for peer in self._entries)
        return [self._timer()] if has_hope else self._give_up()

    def _ask(self) -> list[fx.Effect]:
        assert self._donor is not None
        request = TokeniserRequest(name=self._name, offset=len(self._body))
        return [fx.Send(self._donor, request), self._timer()]

    def _leave(self, why: str) -> list[fx.Effect]:
        assert self._donor is not None
        self.left[self._donor] = why
        return self._ask_somebody()

    def _give_up(self) -> list[fx.Effect]:
        self._is_over = True
        told = {"peers": {str(peer): why for peer, why in sorted(self.left.items())}}
        return [fx.ClearTimer(TIMER), fx.Emit("tokeniser_not_found", told)]

    def _timer(self) -> fx.SetTimer:
        return fx.SetTimer(TIMER, self._limits.answer_s)
