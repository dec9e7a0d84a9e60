"""The first words on a link: who may talk to us about what.

Each side sends Hello when the link comes up. A link counts as greeted once the other's Hello named
our run and a protocol version we share; until then only Hello, Refusal and
requests for the run and its tokeniser are heard.
A refusal always says why, so that the other side can tell its user. A link on which no Hello comes
is ended after GREETING_S: nobody else would, for to the transport it is alive and to membership it
does not exist, and as long as it stands the peer is not dialled again.
"""

from __future__ import annotations

from collections import Counter

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages import control, gossip
from swarmd.protocols.run_shape import RunShape

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""What this version of swarmd speaks."""

GREETING_S = 30.0
"""A newcomer may first ask for the run and check it."""


def common_protocol(ours: tuple[int, int], theirs: tuple[int, int]) -> int | None:
    """The highest version both speak, None if there is none."""
    highest = min(ours[1], theirs[1])
    return highest if highest >= max(ours[0], theirs[0]) else None


class Greeting:
    """Greets, describes the run to those who ask, refuses with a reason.

    run_body: the canonical bytes of the RunConfig, handed to whoever asks for this run; tokeniser:
    its name and file, if it is one and we have it, likewise.
    """

    def __init__(
        self,
        shape: RunShape,
        run_body: bytes,
        incarnation: int,
        agent: str,
        tokeniser: tuple[str, bytes] = ("", b""),
    ) -> None:
        self._tokeniser = tokeniser
        self._shape = shape
        self._run_body = run_body
        self._incarnation = incarnation
        self._agent = agent
        self._ours = (
            max(PROTOCOL_MIN, shape.protocol_min),
            min(PROTOCOL_MAX, shape.protocol_max),
        )
        self.greeted: dict[PeerId, control.Hello] = {}
        self._linked_s: dict[PeerId, float] = {}
        """Since when links have been up on which no Hello was accepted."""
        self.refused: Counter[str] = Counter()
        """Hellos we turned down, by code."""
        self.refused_us: dict[PeerId, str] = {}
        """Why others turned us down."""

    def linked(self, peer: PeerId, record: gossip.SignedRecord, now_s: float) -> list[fx.Effect]:
        """A link has come up."""
        self._linked_s[peer] = now_s
        return self.hello(peer, record)

    def review(self, now_s: float) -> list[fx.Effect]:
        """End the links that have waited long enough for a Hello."""
        late = [peer for peer, at_s in self._linked_s.items() if now_s - at_s >= GREETING_S]
        for peer in late:
            del self._linked_s[peer]
        return [fx.Drop(peer, "no_hello") for peer in sorted(late)]

    def hello(
        self, peer: PeerId, record: gossip.SignedRecord, *, is_reply: bool = False
    ) -> list[fx.Effect]:
        """Say who we are."""
        return [
            fx.Send(
                peer,
                control.Hello(
                    run_id=self._shape.run_id,
                    incarnation=self._incarnation,
                    protocol_min=self._ours[0],
                    protocol_max=self._ours[1],
                    agent=self._agent,
                    record=record,
                    is_reply=is_reply,
                ),
            )
        ]

    def heard_hello(self, peer: PeerId, hello: control.Hello) -> tuple[bool, list[fx.Effect]]:
        """(accepted, what to do)."""
        if hello.run_id != self._shape.run_id:
            return False, self._refuse(peer, "wrong_run", f"this is run {self._shape.run_id[:8]}")
        theirs = (hello.protocol_min, hello.protocol_max)
        if common_protocol(self._ours, theirs) is None:
            text = f"we speak {self._ours[0]}..{self._ours[1]}, you {theirs[0]}..{theirs[1]}"
            return False, self._refuse(peer, "version_mismatch", text)
        self.greeted[peer] = hello
        self._linked_s.pop(peer, None)
        self.refused_us.pop(peer, None)
        return True, []

    def heard_refusal(self, peer: PeerId, refusal: control.Refusal) -> list[fx.Effect]:
        self.refused_us[peer] = refusal.code
        self.greeted.pop(peer, None)
        return [
            fx.Emit("refused_by_peer", {"peer": peer, "code": refusal.code, "text": refusal.text}),
            fx.Drop(peer, refusal.code),
        ]

    def heard_run_request(self, peer: PeerId, request: control.RunRequest) -> list[fx.Effect]:
        if request.run_id != self._shape.run_id:
            text = f"this is run {self._shape.run_id[:8]}"
            return [fx.Send(peer, control.Refusal(code="wrong_run", text=text))]
        body = control.RunDescription(run_id=self._shape.run_id, body=self._run_body)
        return [fx.Send(peer, body)]

    def heard_tokeniser_request(
        self, peer: PeerId, request: control.TokeniserRequest
    ) -> list[fx.Effect]:
        name, body = self._tokeniser
        if request.name != name:
            return [fx.Send(peer, control.TokeniserPart(name=request.name, offset=0, size_bytes=0))]
        end = request.offset + control.TOKENISER_PART_BYTES
        part = control.TokeniserPart(
            name=name,
            offset=request.offset,
            size_bytes=len(body),
            body=body[request.offset : end],
        )
        return [fx.Send(peer, part)]

    def lost(self, peer: PeerId) -> None:
        self._linked_s.pop(peer, None)
        self.greeted.pop(peer, None)

    def _refuse(self, peer: PeerId, code: str, text: str) -> list[fx.Effect]:
        self.refused[code] += 1
        return [
            fx.Send(peer, control.Refusal(code=code, text=text)),
            fx.Emit("peer_refused", {"peer": peer, "code": code}),
        ]
