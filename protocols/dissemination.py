"""What is still to be told to whom, and how much fits into a message.

Each piece of news goes to a link at most once (streams lose nothing while they live), never back to
where it came from, and a newer piece about the same peer takes the place of the older. Least told
goes first, as in SWIM; among equals the newest. Whatever this misses, anti-entropy brings.

Urgent news (a claim, a death, a refutation) makes the machine send at once, and a new round soon,
to all of its ring neighbours: on an expander that reaches everybody in O(log N) hops, also when
some pass nothing on. Mere progress rides on probes, and on few links: what misses a peer is
overtaken by the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import (
    NEWS_BYTES_MAX,
    NEWS_RECORDS_MAX,
    NEWS_RUMOURS_MAX,
    RECORD_BYTES_MAX,
    Rumour,
    SignedRecord,
)
from swarmd.protocols.records import Haste

QUEUE_MAX = 4_096
"""Pieces of news waiting. The most told is dropped first; anti-entropy carries it then."""
PROGRESS_TELLINGS = 3
"""To how many links a peer passes on mere progress: reaches all but e^-3 of the swarm."""
ENVELOPE_BYTES = 32
"""Field names and lengths around one piece. Roughly: it is a budget, not an account."""
PIECES_THAT_FIT = NEWS_BYTES_MAX // (RECORD_BYTES_MAX + 64 + ENVELOPE_BYTES)
"""However large they are: then it does not matter which go first."""

News = SignedRecord | Rumour
Topic = tuple[PeerId, str]
"""Whom it is about, and "record" or the verdict: at most one piece of each waits."""


@dataclass(slots=True)
class _Piece:
    topic: Topic
    news: News
    size_bytes: int
    haste: Haste
    told: set[PeerId] = field(default_factory=set)
    """Links that have it: they got it from us, or gave it to us."""
    times: int = 0


def size_of(news: News) -> int:
    """Bytes in a message, roughly."""
    if isinstance(news, SignedRecord):
        return len(news.body) + len(news.signature) + ENVELOPE_BYTES
    return len(news.peer) + len(news.accuser) + 2 * ENVELOPE_BYTES


class Dissemination:
    """The queue of news."""

    def __init__(self) -> None:
        self.fresh = Haste.WHENEVER
        """Of the news that has come up since the machine last looked here."""
        self._pieces: dict[Topic, _Piece] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def put(
        self,
        topic: Topic,
        news: News,
        told: Iterable[PeerId] = (),
        *,
        haste: Haste = Haste.AT_ONCE,
    ) -> None:
        """Queue a piece; it replaces an older one on its topic, and inherits its haste."""
        former = self._pieces.pop(topic, None)
        if former is not None:
            haste = max(haste, former.haste)
        if len(self._pieces) >= QUEUE_MAX:
            most_told = max(self._pieces, key=lambda key: (self._pieces[key].times, key))
            del self._pieces[most_told]
            self.dropped += 1
        self._pieces[topic] = _Piece(topic, news, size_of(news), haste, set(told))

    def known_by(self, topic: Topic, news: News, peer: PeerId) -> None:
        """A link just gave us what we were about to tell it."""
        piece = self._pieces.get(topic)
        if piece is not None and (piece.news is news or piece.news == news):
            piece.told.add(peer)

    def withdraw(self, topic: Topic) -> None:
        """It is no longer true."""
        self._pieces.pop(topic, None)

    def take(self, link: PeerId) -> tuple[tuple[SignedRecord, ...], tuple[Rumour, ...]]:
        """What to tell this link now, within the bounds of one message."""
        if not self._pieces:
            return (), ()
        waiting = [piece for piece in self._pieces.values() if link not in piece.told]
        if not waiting:
            return (), ()
        if len(waiting) > PIECES_THAT_FIT:
            waiting.reverse()
            waiting.sort(key=lambda piece: piece.times)
        room_bytes = NEWS_BYTES_MAX
        records: list[SignedRecord] = []
        rumours: list[Rumour] = []
        for piece in waiting:
            news = piece.news
            if piece.size_bytes > room_bytes:
                break
            if isinstance(news, SignedRecord):
                if len(records) == NEWS_RECORDS_MAX:
                    continue
                records.append(news)
            else:
                if len(rumours) == NEWS_RUMOURS_MAX:
                    continue
                rumours.append(news)
            room_bytes -= piece.size_bytes
            piece.told.add(link)
            piece.times += 1
            if piece.times >= PROGRESS_TELLINGS and piece.haste is Haste.WHENEVER:
                del self._pieces[piece.topic]
        return tuple(records), tuple(rumours)

    @property
    def haste(self) -> Haste:
        """Of the piece that can wait least."""
        return max((piece.haste for piece in self._pieces.values()), default=Haste.WHENEVER)

    def settle(self, links: Iterable[PeerId]) -> None:
        """Forget the pieces that each of these has."""
        if not self._pieces:
            return
        present = set(links)
        for topic in [t for t, piece in self._pieces.items() if present <= piece.told]:
            del self._pieces[topic]
