"""`swarmd sim`: a seeded simulation of a swarm, with a network model, faults and churn."""

from __future__ import annotations

from typing import Any

from swarmd.cli.framework import DURATION, Parsed, Session, command, option
from swarmd.units import parse_rate


@command(section="Checking")
@option("--peers", type=int, default=12, show_default=True)
@option("--stages", type=int, default=3, show_default=True)
@option("--rounds", type=int, default=3, show_default=True, help="Of faults.")
@option("--seed", type=int, default=1, show_default=True)
@option("--rtt", type=DURATION, help="Round trip of every link; else drawn from the seed.")
@option("--bw", type=Parsed("RATE", parse_rate), help="Of every link; else drawn from the seed.")
@option("--loss", type=float, metavar="SHARE", help="Of links that break; else drawn.")
@option("--kill", type=int, metavar="N", help="Peers that crash; else drawn.")
@option("--scenario", metavar="NAME", help="A named story instead of drawn faults.")
@option("--trace", is_flag=True, help="A line for each change of state.")
@option(
    "--until-failure", is_flag=True, help="One seed after the other, up to the first that fails."
)
def sim(session: Session, rtt: float | None, bw: float | None, **flags: Any) -> int:
    """Simulate a swarm: the daemon's own machines, virtual time, faults from a seed.

    Ends with 0, with 10 if a rule was broken, 11 if the swarm did not settle, 12 if a peer crashed.
    The last line repeats the run.
    """
    from swarmd.cli.time_limit import TimeLimit
    from swarmd.json_record import render
    from swarmd.result_records import Sim
    from swarmd.sim.run import SimOptions, run

    options = SimOptions(rtt_s=rtt, bandwidth_bytes_per_s=bw, **flags)
    printer = session.printer
    limit = TimeLimit(session.options.timeout_s, printer.say)
    found = run(options, None if printer.is_json else printer.line, limit.check)
    if printer.is_json:
        names = Sim.__dataclass_fields__
        known = {name: value for name, value in found.to_json().items() if name in names}
        known["faults_drawn"] = list(found.faults_drawn)
        known["violations"] = list(found.violations)
        printer.object(render(Sim(**known)))
    return found.exit_code
