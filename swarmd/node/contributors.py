"""What each peer's work counted for, as `swarmd contributions` shows it.

Receipts name peers by a hash; who is meant is found among all that the ledger or the roster has
ever named. A hash that nobody here can name is left out of the table, and nothing else of it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarmd.protocols.ids import PeerId
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.receipts import Witnessed, tag_of
from swarmd.records import Contributor


def contributors(ledger: Ledger, names: Mapping[PeerId, str]) -> list[Contributor]:
    """By id. names: of the peers in the roster."""
    done = ledger.contributions()
    proved = ledger.witnessed_total()
    tokens = ledger.shape.sequence_tokens
    found = []
    for peer in sorted({*done, *names, *_writers(ledger)}):
        seen = proved.get(tag_of(peer), Witnessed())
        if peer not in done and not seen.receipts:
            continue
        counted = done.get(peer, seen)
        found.append(
            Contributor(
                id=peer,
                name=names.get(peer),
                micro_batches=counted.micro_batches,
                tokens=counted.samples * tokens,
                rounds=counted.rounds,
                receipts=seen.receipts,
                tokens_witnessed=seen.samples * tokens,
            )
        )
    return found


def _writers(ledger: Ledger) -> set[PeerId]:
    return {
        entry.key.peer for number in ledger.rounds_in_detail() for entry in ledger.entries(number)
    }
