"""Writes down whom we know, so that a peer that was killed finds its way back (state/peers.json).

No address is special after joining: the founder has none but those it has met. Written soon after
the addresses change, since nobody announces a SIGKILL, and never emptied: that all are gone now
does not mean that they stay away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from swarmd.home import Home
from swarmd.home_files import KnownPeer, write_known_peers
from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.roster import PeerView

EVERY_S = 2.0


class PeerMemory:
    """present: everybody who is there now, ourselves included; now_utc: the time for the file."""

    def __init__(
        self,
        home: Home,
        run_id: RunId,
        own: PeerId,
        present: Callable[[], Iterable[PeerView]],
        now_utc: Callable[[], str],
    ) -> None:
        self._home = home
        self._run_id = run_id
        self._own = own
        self._present = present
        self._now_utc = now_utc
        self._written: dict[str, tuple[str, ...]] = {}

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(EVERY_S)
            self.write()

    def write(self, *, is_last: bool = False) -> None:
        """If there is something new; at the end in any case, for the times of the last sight."""
        records = {v.peer: v.record for v in self._present() if v.peer != self._own}
        places = {peer: tuple(record.addresses) for peer, record in records.items()}
        if not places or (places == self._written and not is_last):
            return
        self._written = dict(places)
        seen_at = self._now_utc()
        peers = [
            KnownPeer(peer=peer, name=record.name, addresses=places[peer], seen_at=seen_at)
            for peer, record in records.items()
        ]
        write_known_peers(self._home, self._run_id, peers)
