"""Where a local swarm is shown: live on a terminal, plain lines in a pipe, JSON on request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from swarmd.cli.local_swarm import render
from swarmd.cli.local_swarm.view import SwarmView

if TYPE_CHECKING:
    from rich.live import Live

    from swarmd.cli.local_swarm.plan import LocalPlan
    from swarmd.cli.output import Printer
    from swarmd.result_records import Local

TWIN_EVERY_STEPS = 20


class Show:
    """A context manager: the live view is up while it is entered."""

    def __init__(self, printer: Printer, plan: LocalPlan, *, plain: bool) -> None:
        self._printer = printer
        self._plan = plan
        self._is_live = printer.is_terminal and not plain and not printer.is_json
        self._live: Live | None = None
        self._notes: list[str] = []
        self._losses: list[float] = []
        self._round = 0
        self._event_offsets: dict[Path, int] = {}

    def __enter__(self) -> Show:
        plan = self._plan
        if not self._printer.is_json:
            line = render.started_line(plan.seed, plan.peers, plan.stages, plan.steps)
            self._printer.line(line)
        if self._is_live:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(), refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # -------------------------------------------------------------------------------- what happens

    def fact(self, elapsed_s: float, text: str) -> None:
        """One line, once."""
        line = f"{render.clock(elapsed_s)} {text}"
        self._notes.append(line)
        if not self._is_live and not self._printer.is_json:
            self._printer.line(line)

    def turn(self, elapsed_s: float, view: SwarmView) -> None:
        """The present picture."""
        loss = view.heads_mean("progress.loss")
        if loss is not None and (not self._losses or loss != self._losses[-1]):
            self._losses.append(loss)
        if self._printer.is_json:
            self._pass_events_on()
        elif self._live is not None:
            self._live.update(self._picture(elapsed_s, view))
        elif view.round > self._round:
            self._round = view.round
            self._printer.line(render.round_line(elapsed_s, view, view.round))

    def twin_step(self, elapsed_s: float, step: int, loss: float) -> None:
        if (step + 1) % TWIN_EVERY_STEPS == 0:
            self.fact(elapsed_s, f"twin step={step + 1} loss={loss:.3f}")

    def result(self, result: Local, rendered: Mapping[str, Any]) -> None:
        """The last lines."""
        if self._printer.is_json:
            self._pass_events_on()
            self._printer.object(rendered)
            return
        for line in render.result_lines(result):
            self._printer.line(line)

    # ----------------------------------------------------------------------------------- the inside

    def _picture(self, elapsed_s: float, view: SwarmView) -> Any:
        plan = self._plan
        return render.live_view(
            view,
            title=(
                f"swarmd local · {plan.peers} peers · {plan.stages} stages · {plan.steps} steps"
                f" · H {plan.inner_steps} · seed {plan.seed}"
            ),
            elapsed_s=elapsed_s,
            total_steps=plan.steps,
            losses=self._losses,
            notes=self._notes,
        )

    def _pass_events_on(self) -> None:
        """What the peers wrote into their event files since the last turn, with their names."""
        for file in sorted(self._plan.dir.glob("p*/state/events.jsonl")):
            offset = self._event_offsets.get(file, 0)
            with file.open("rb") as lines:
                lines.seek(offset)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    event = json.loads(line)
                    event["peer"] = event.get("peer") or file.parents[1].name
                    self._printer.object(event)
            self._event_offsets[file] = offset
