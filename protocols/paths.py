"""Whom this peer cannot reach: dials that failed, each address with its cause, until a link is up.

The transport has tried every address and then the nearest neighbours as relays before it says that
a dial failed. So a failure that lasts means: no direct path, and nobody who relays. One failure is
no more than bad luck, hence the patience.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarmd.protocols.coverage import Coverage
from swarmd.protocols.ids import PeerId
from swarmd.protocols.pipeline_statistics import Waiting
from swarmd.protocols.roster import PeerView

PATIENCE_S = 5.0
"""From the first failure to a word about it; a few dials by then."""
REMEMBERED_MAX = 1024
HELP = (
    "forward a port to either of you and say it with `--announce`, "
    "or let somebody join whom both can dial: neighbours of both relay"
)


@dataclass(slots=True)
class _Failure:
    first_s: float
    causes: Mapping[str, str]


class Paths:
    """Dials that failed and were not followed by a link."""

    def __init__(self) -> None:
        self._failures: dict[PeerId, _Failure] = {}

    def failed(self, peer: PeerId, causes: Mapping[str, str], now_s: float) -> None:
        before = self._failures.pop(peer, None)
        first_s = now_s if before is None else before.first_s
        self._failures[peer] = _Failure(first_s, dict(causes))
        while len(self._failures) > REMEMBERED_MAX:
            del self._failures[next(iter(self._failures))]

    def found(self, peer: PeerId) -> None:
        """There is a link to it."""
        self._failures.pop(peer, None)

    def causes_of(self, peers: Iterable[PeerId]) -> tuple[tuple[str, str], ...]:
        """(address, cause) of those that did not answer, by peer and address."""
        return tuple(
            found
            for peer in sorted(peers)
            if peer in self._failures
            for found in sorted(self._failures[peer].causes.items())
        )

    def missing(self, stage: int, coverage: Coverage, now_s: float) -> Waiting | None:
        """What to say where all peers of the next stage, or all of the one before, are out of
        reach; None while anybody of each can be reached, or nobody is there at all."""
        for near in (stage + 1, stage - 1):
            if 0 <= near < coverage.stages:
                lost = self._lost(coverage.active[near], now_s)
                if lost is not None:
                    return _waiting(near, lost, self._failures[lost.peer])
        return None

    def _lost(self, views: Sequence[PeerView], now_s: float) -> PeerView | None:
        """The first of them, if none can be reached."""
        for view in views:
            failure = self._failures.get(view.peer)
            if failure is None or now_s - failure.first_s < PATIENCE_S:
                return None
        return views[0] if views else None


def _waiting(stage: int, view: PeerView, failure: _Failure) -> Waiting:
    name = view.record.name or view.peer[-4:]
    listed = ", ".join(f"{address} {cause}" for address, cause in sorted(failure.causes.items()))
    text = f"no direct path to {name} ({listed or 'it has no address'}) and no relay"
    subject = {"stage": stage, "peer": view.peer, "since_s": failure.first_s, "hint": HELP}
    return Waiting("no_dialable_path", subject, text)
