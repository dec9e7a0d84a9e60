"""`swarmd data`: what was trained on, and the proof of it."""

from __future__ import annotations

from swarmd.cli.framework import Session, group


@group(section="Looking")
def data(session: Session) -> None:
    """The samples of a run, and the proof that each was counted once."""


@data.subcommand()
def audit(session: Session) -> int:
    """Prove from this peer's ledger that no sample is missing or counted twice. 1 if not."""
    found = session.ask("audit")
    if session.is_json:
        session.printer.object(found)
        return 0 if found.get("clean") else 1
    from swarmd.cli import format as f
    from swarmd.json_record import from_plain
    from swarmd.records import Audit

    told = from_plain(Audit, found)
    session.printer.line(
        f"{f.count(told.samples_completed)} of {f.count(told.samples_total)} samples done"
        f" · {f.count(told.open_leases)} micro-batches under way"
        f" · {f.count(told.processed_twice)} samples worked on twice, counted once"
    )
    verdict = "clean: no gap, no repeat" if told.clean else "NOT clean"
    session.printer.line(f"{verdict}, up to sample {f.count(told.covered_until)}")
    for name, ranges in (("gap", told.gaps), ("repeat", told.repeats)):
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            session.printer.line(f"{name}  samples {first} to {last}")
    return 0 if told.clean else 1
