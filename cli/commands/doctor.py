"""`swarmd doctor`: what this machine can do for a run, what is in the way, and how to mend it."""

from __future__ import annotations

from typing import Any

from swarmd.cli import exits
from swarmd.cli.framework import Session, command, option
from swarmd.cli.named_run import run_described
from swarmd.errors import SwarmdError


@command(section="Checking")
@option("--run", metavar="RUN", help="A run file, or a run of this home; default: the last one.")
@option("--gpu", metavar="INDEX|UUID|PCI", multiple=True, help="Instead of the settings' ones.")
@option("--no-step", is_flag=True, help="Do not train a stage for a few seconds.")
def doctor(session: Session, run: str | None, gpu: tuple[str, ...], no_step: bool) -> int:
    """Look over machine, device, disk, clock, files and ports; each finding says what to do.

    With a run it also trains one of its stages for a few seconds, on made-up data, and ends with
    what this machine could do for it. Needs no daemon and no network. Ends with 1 after an error.
    """
    from swarmd.cli.doctor import fit, machine, peer, show
    from swarmd.json_record import render
    from swarmd.peer_config import effective_config
    from swarmd.result_records import Doctor
    from swarmd.versions import is_supported

    flags = {"gpu": gpu} if gpu else {}
    config = effective_config(session.home, flags=flags).config
    description = run_described(session, run, config)
    findings = [*machine.findings(session.home)]
    findings += peer.findings(session.home, config, _status(session))
    found = fit.look(session.home, config, description, dry_step=not no_step)
    findings += found.findings
    if description is not None:
        findings += peer.run_findings(description, session.home, config)
    report = Doctor(
        findings=findings, supported=is_supported(), fit=found.fit, verdict=found.verdict
    )
    if session.is_json:
        session.printer.object(render(report))
    else:
        for line in show.lines_of(report, session.printer):
            session.printer.line(line)
    has_error = any(finding.severity == "error" for finding in findings)
    return exits.FAILED if has_error else exits.OK


def _status(session: Session) -> dict[str, Any] | None:
    """Of the daemon, if one answers."""
    try:
        return session.ask("status")
    except SwarmdError:
        return None
