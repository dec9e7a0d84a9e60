"""A ledger as the objects of docs/cli.md: what is proved, and what each peer's work counted for.

Receipts name peers by a hash; who is meant is found among all that the ledger or the roster has
ever named. A hash that nobody here can name is left out of the table, and nothing else of it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarmd import records
from swarmd.protocols.audit import Audit
from swarmd.protocols.ids import PeerId
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.receipts import Witnessed, tag_of
from swarmd.status import Contribution


def audit_shown(found: Audit) -> records.Audit:
    return records.Audit(
        samples_total=found.samples_total,
        samples_completed=found.samples_completed,
        gaps=[number for gap in found.gaps for number in (gap.first, gap.last)],
        repeats=[number for item in found.repeats for number in (item.first, item.last)],
        processed_twice=found.processed_twice,
        open_leases=found.open_leases,
        clean=found.clean,
        covered_until=found.covered_until,
    )


def contributions_shown(ledger: Ledger, names: Mapping[PeerId, str]) -> records.Contributions:
    found = contributors(ledger, names)
    return records.Contributions(peers=found, as_of_round=ledger.settled)


def contribution_shown(ledger: Ledger, peer: PeerId, counted_here: int) -> Contribution:
    """Of one peer, as it shows it itself. counted_here: micro-batches that counted in this life,
    of which the ledger need not say anything yet."""
    shape = ledger.shape
    seen = ledger.witnessed_total().get(tag_of(peer), Witnessed())
    told = ledger.contributions().get(peer, seen)
    return Contribution(
        micro_batches=max(counted_here, told.micro_batches),
        tokens=max(counted_here * shape.micro_batch_tokens, told.samples * shape.sequence_tokens),
        rounds=seen.rounds,
        receipts=seen.receipts,
    )


def contributors(ledger: Ledger, names: Mapping[PeerId, str]) -> list[records.Contributor]:
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
            records.Contributor(
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
