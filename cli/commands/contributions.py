"""`swarmd contributions`: what each peer's work counted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swarmd.cli.framework import Session, command, option
from swarmd.cli.ledgers import FROM_FILE, OF_RUN, asked_of_daemon, ledger_on_disk

if TYPE_CHECKING:
    from swarmd.ledger_file import LedgerFile


@command(section="Looking")
@option("--ledger", "file", metavar="FILE", help=FROM_FILE)
@option("--run", metavar="RUN", help=OF_RUN)
def contributions(session: Session, file: str | None, run: str | None) -> None:
    """Counted work by peer, as this peer's ledger has it.

    MICRO-BATCHES, TOKENS: of a head (a peer of the first stage), those it led and that were done;
    of others, those their neighbours in the pipeline signed for. ROUNDS: in which it did any.
    RECEIPTS: such signatures, one a neighbour and round. WITNESSED: tokens that they prove; a peer
    between two stages needs both sides to say so. What a peer signs for itself counts nothing
    there. Every member shows the same, after at most one round. A run of one stage has no
    neighbours, so no receipts.
    """
    on_disk = ledger_on_disk(session, file, run)
    if on_disk is None:
        found = asked_of_daemon(session, "contributions")
    else:
        found = _contributions_of(on_disk)
    if session.is_json:
        session.printer.object(found)
        return
    from swarmd.cli import format as f
    from swarmd.cli.layout import table
    from swarmd.json_record import from_plain
    from swarmd.records import Contributions

    told = from_plain(Contributions, found)
    rows = [
        (
            f.peer(peer.name, peer.id),
            f.count(peer.micro_batches),
            f.count(peer.tokens),
            f.count(peer.rounds),
            f.count(peer.receipts),
            f.count(peer.tokens_witnessed),
        )
        for peer in told.peers
    ]
    head = ("PEER", "MICRO-BATCHES", "TOKENS", "ROUNDS", "RECEIPTS", "WITNESSED")
    for line in table(head, rows, right=[1, 2, 3, 4, 5]):
        session.printer.line(line)
    session.printer.line()
    over = f.plural(told.as_of_round or 0, "round")
    session.printer.line(f"after {over}, with what the running one has counted so far")


def _contributions_of(found: LedgerFile) -> dict[str, Any]:
    from swarmd.json_record import render
    from swarmd.ledger_shown import contributions_shown

    return render(contributions_shown(found.ledger, {}))
