"""RUN on a command line: a run link, a run file, or the name of a run this home knows.

Resolving touches nothing and finds what can be wrong at once. What takes long (measuring the data
of a run file) or needs the network (the description of a run that is only a link) comes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from swarmd.errors import UserError
from swarmd.home import Home, absolute
from swarmd.home_files import find_run, known_runs, read_known_peers
from swarmd.protocols.ids import RunId
from swarmd.run_config import RunConfig
from swarmd.run_file import RunFile, RunPlan, read_run_file
from swarmd.run_link import (
    LINK_EXAMPLE,
    SCHEME,
    PeerAddress,
    RunLink,
    parse_run_link,
    unique_entries,
)
from swarmd.units import BadValue


@dataclass(frozen=True, slots=True)
class RunSource:
    """Which run is meant, and where its peers may be found."""

    kind: Literal["file", "link", "known"]
    entries: tuple[PeerAddress, ...]
    run_id: RunId | None = None
    """None for a file: known once its data are measured."""
    config: RunConfig | None = None
    """None: of a file not yet measured, or of a link this home does not know."""
    plan: RunPlan | None = None
    stages: int | None = None
    """None: of a link this home does not know."""

    def load(self, cache_dir: Path) -> RunFile | RunLink:
        """What the daemon starts from. May take long: data of a file are packed into `cache_dir`.

        A link's description comes from this home's memory or from its peers. Raises UserError.
        """
        if self.plan is not None:
            return replace(self.plan.measure(cache_dir), entries=self.entries)
        assert self.run_id is not None
        return RunLink(self.run_id, self.entries)

    def all_entries(self, home: Home, run_id: RunId) -> tuple[PeerAddress, ...]:
        """Those given first, then the peers that answered before."""
        known = (entry for peer in read_known_peers(home, run_id) for entry in peer.entries())
        return unique_entries([*self.entries, *known])


def resolve_run(home: Home, text: str | None, peers: Sequence[PeerAddress] = ()) -> RunSource:
    """text None: the run this home used last. peers: further entry addresses, tried first.

    Raises UserError: 2 for a wrong link or name, or if nothing was used before; 78 for a bad file.
    """
    if text is None:
        runs = known_runs(home)
        if not runs:
            raise UserError(
                "no run was named, and this home has taken part in none",
                code="no_run",
                exit_code=2,
                hint="give a run link, a run file, or the name of a run",
            )
        return _known(runs[0].config, (*peers, *runs[0].entries))
    if text.startswith(SCHEME) or "://" in text:
        return _link(home, text, peers)
    path = Path(text)
    if text.endswith(".toml") or path.is_file():
        plan = read_run_file(absolute(path))
        entries = unique_entries([*peers, *plan.entries])
        return RunSource("file", entries, plan=plan, stages=plan.check().stages)
    found = find_run(home, text)
    if found is None:
        raise UserError(
            f"{text!r} is no run link, no run file and no run of this home",
            code="unknown_run",
            exit_code=2,
            hint=f"a link looks like {LINK_EXAMPLE}; `swarmd run ls` lists the runs of this home",
        )
    return _known(found.config, (*peers, *found.entries))


def require_way_in(source: RunSource, home: Home, *, is_founder: bool, has_lan: bool) -> None:
    """Raise UserError (exit 2) where nobody could ever be found, or nothing could be founded.

    An empty list of addresses never means "start my own": only --first founds a swarm.
    """
    if is_founder:
        if source.kind == "link" and source.config is None:
            raise UserError(
                "--first needs the run's description, and a link is only its name",
                code="usage",
                exit_code=2,
                hint="found a swarm with its run file",
            )
        return
    entries = source.entries
    if source.run_id is not None:
        entries = source.all_entries(home, source.run_id)
    if not entries and not has_lan:
        raise no_entry()


def require_stage(stages: int, wanted: int | None) -> None:
    """Raise UserError (exit 2) for a stage that the run does not have."""
    if wanted is not None and wanted >= stages:
        has = "stage 0 alone" if stages == 1 else f"stages 0 to {stages - 1}"
        raise UserError(f"there is no stage {wanted}: the run has {has}", code="usage", exit_code=2)


def no_entry() -> UserError:
    """Nobody to ask: nothing in link, file, flags or memory, and nobody on the local network."""
    return UserError(
        "there is no address of any peer of this run",
        code="no_entry_address",
        exit_code=2,
        hint="give a run link with peers or `--peer ADDR`, look on the local network with "
        "`--lan-discovery on`, or found the swarm with `--first`",
    )


def _link(home: Home, text: str, peers: Sequence[PeerAddress]) -> RunSource:
    try:
        link = parse_run_link(text)
    except BadValue as error:
        raise UserError(str(error), code="bad_link", exit_code=2) from None
    known = find_run(home, link.run_id)
    return RunSource(
        "link",
        unique_entries([*peers, *link.entries]),
        run_id=link.run_id,
        config=None if known is None else known.config,
        stages=None if known is None else known.config.stages,
    )


def _known(config: RunConfig, entries: Sequence[PeerAddress]) -> RunSource:
    return RunSource(
        "known",
        unique_entries(entries),
        run_id=config.run_id,
        config=config,
        stages=config.stages,
    )
