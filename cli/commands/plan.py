"""`swarmd plan`: the stage map, and why a move is or is not made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.cli.framework import Session, command

if TYPE_CHECKING:
    from swarmd.records import PlannedPeer


@command(section="Looking")
def plan(session: Session) -> None:
    """The present and the proposed stage map, the gain, and why."""
    found = session.ask("plan")
    if session.is_json:
        session.printer.object(found)
        return
    from swarmd.cli import format as f
    from swarmd.cli.layout import table
    from swarmd.json_record import from_plain
    from swarmd.records import Plan, PlannedStage

    proposal = from_plain(Plan, found)

    def tails(stage: PlannedStage | None) -> str:
        return " ".join(f"·{peer[-4:]}" for peer in stage.peers) if stage else f.UNKNOWN

    proposed = {stage.stage: stage for stage in proposal.proposal}
    rows = [(str(now.stage), tails(now), tails(proposed.get(now.stage))) for now in proposal.map]
    for line in table(("STAGE", "NOW", "PROPOSED"), rows, right=[0]):
        session.printer.line(line)
    session.printer.line()
    places = [
        (
            peer.name or f"·{peer.id[-4:]}",
            f.UNKNOWN if peer.stage is None else str(peer.stage),
            f.UNKNOWN if peer.proposed is None else str(peer.proposed),
            _why(peer),
        )
        for peer in proposal.peers
    ]
    for line in table(("PEER", "NOW", "PROPOSED", "WHY"), places, right=[1, 2]):
        session.printer.line(line)
    session.printer.line()
    gain = "" if proposal.gain_share is None else f", gain {f.percent(proposal.gain_share)}"
    session.printer.line(f"{proposal.decision}{gain}: {proposal.why}")
    if proposal.next_check_s is not None:
        session.printer.line(f"looks again in {f.duration(proposal.next_check_s)}")


def _why(peer: PlannedPeer) -> str:
    bonds = {"pinned": peer.pinned, "cordoned": peer.cordoned, "has no data": peer.lacks_data}
    marks = [word for word, holds in bonds.items() if holds]
    return ", ".join([peer.why, *(mark for mark in marks if mark != peer.why)])
