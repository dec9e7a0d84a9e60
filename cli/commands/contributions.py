"""`swarmd contributions`: what each peer's work counted for."""

from __future__ import annotations

from swarmd.cli.framework import Session, command


@command(section="Looking")
def contributions(session: Session) -> None:
    """Counted work by peer, as this peer's ledger has it.

    MICRO-BATCHES and TOKENS are those a peer led and that were done; ROUNDS, the rounds in which it
    did any. Every member shows the same, after at most one round.
    """
    found = session.ask("contributions")
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
        )
        for peer in told.peers
    ]
    for line in table(("PEER", "MICRO-BATCHES", "TOKENS", "ROUNDS"), rows, right=[1, 2, 3]):
        session.printer.line(line)
    session.printer.line()
    session.printer.line(f"as of round {told.as_of_round}")
