"""`swarmd local`: a real swarm of separate processes on this machine (docs/cli.md section 15)."""

from __future__ import annotations

import contextlib
import math
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmd.cli import exits
from swarmd.cli.framework import Parsed, Session, command, option

if TYPE_CHECKING:
    from swarmd.cli.local_swarm.conductor import Conductor
    from swarmd.cli.local_swarm.plan import LocalPlan
    from swarmd.cli.local_swarm.show import Show
    from swarmd.cli.local_swarm.twin import TwinFigures
    from swarmd.result_records import Local
    from swarmd.run_config import RunConfig

TIMEOUT_S = 600.0


def _loss_target(text: str) -> str:
    from swarmd.units import BadValue

    if text not in ("auto", "none"):
        try:
            float(text)
        except ValueError:
            raise BadValue(text, "is no loss", "2.5, auto or none") from None
    return text


def _shape(text: str) -> str:
    from swarmd.units import parse_shape

    parse_shape(text)
    return text


@command(section="Checking")
@option("--peers", type=int, default=4, show_default=True, help="How many peers.")
@option("--stages", type=int, default=2, show_default=True, help="How many pipeline stages.")
@option("--steps", type=int, default=200, show_default=True, help="Inner steps of the swarm.")
@option("--preset", default="tiny", show_default=True, help="Sizes to start from.")
@option("--inner-steps", type=int, default=20, show_default=True, help="H, steps in a round.")
@option("--seed", type=int, default=7, show_default=True)
@option(
    "--loss-target", default="auto", show_default=True,
    type=Parsed("X|auto|none", _loss_target), help="What the last loss must meet.",
)  # fmt: skip
@option("--threads", type=int, default=1, show_default=True, help="Per peer.")
@option("--dir", "folder", metavar="DIR", help="Homes of the peers; default: a fresh one.")
@option("--keep", is_flag=True, help="Do not remove the homes.")
@option("--hold", is_flag=True, help="Keep the swarm up after the target, until a signal.")
@option("--rank", type=int, metavar="K", help="Coefficients a token at the boundaries; 0: dense.")
@option("--boundary", metavar="KIND", help="dense, subspace or anchored[:r|full].")
@option("--wire", metavar="DTYPE", help="fp32, bf16 or int8.")
@option("--data", metavar="SOURCE", help="builtin:python, text:GLOB ...")
@option("--shape", type=Parsed("RATE[,DELAY[,JITTER]]", _shape), help="How every link behaves.")
@option("--baseline", is_flag=True, help="Train the twin too, a plain loop in one process.")
@option("--event", "events", multiple=True, metavar="'WHEN ACTION'", help="As '20s kill p2'.")
@option("--inject", "injections", multiple=True, metavar="pN:SPEC", help="A fault on peer pN.")
@option("--plain", is_flag=True, help="Plain lines even on a terminal.")
def local(session: Session, plain: bool, **flags: Any) -> int:
    """Train a small language model with a real swarm of peers on this machine.

    Each peer is a process of its own with a home of its own; they find each other by a run link, as
    strangers would. Ends with 0 only if training got there and nothing is left behind.
    """
    from swarmd.cli.local_swarm.show import Show
    from swarmd.json_record import render

    plan = _plan(session, flags)
    show = Show(session.printer, plan, plain=plain)
    with _folder_of(plan) as keep, _stop_on_signals():
        result = _run(plan, show)
        show.result(result, render(result))
        if result.exit_code != 0:
            keep()
    return result.exit_code


def _plan(session: Session, flags: dict[str, Any]) -> LocalPlan:
    from swarmd.cli.local_swarm.events import parse_event
    from swarmd.cli.local_swarm.plan import LocalPlan, parse_injection_target

    folder = flags.pop("folder")
    events = tuple(parse_event(text, flags["peers"]) for text in flags.pop("events"))
    injections = tuple(
        parse_injection_target(text, flags["peers"]) for text in flags.pop("injections")
    )
    return LocalPlan(
        dir=Path(folder or tempfile.mkdtemp(prefix="swarmd-local-")),
        dir_is_ours=folder is None,
        timeout_s=session.options.timeout_s or TIMEOUT_S,
        command=shlex.join(["swarmd", *session.argv]),
        events=events,
        injections=injections,
        **flags,
    )


@contextlib.contextmanager
def _folder_of(plan: LocalPlan) -> Iterator[Any]:
    """The homes' directory; gone after success if it was made for this command."""
    from swarmd.cli.local_swarm.plan import prepare_dir

    prepare_dir(plan.dir)
    kept = plan.keep or not plan.dir_is_ours

    def keep() -> None:
        nonlocal kept
        kept = True

    try:
        yield keep
    except BaseException:
        if plan.dir_is_ours and not any(plan.dir.glob("p*")):
            shutil.rmtree(plan.dir, ignore_errors=True)
        raise
    if not kept:
        shutil.rmtree(plan.dir, ignore_errors=True)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """SIGTERM ends it in order, as Ctrl-C does."""

    def terminate(number: int, frame: object) -> None:
        raise exits.Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(plan: LocalPlan, show: Show) -> Local:
    from swarmd.cli.local_swarm import render
    from swarmd.cli.local_swarm.conductor import Conductor
    from swarmd.cli.local_swarm.plan import require_memory
    from swarmd.cli.local_swarm.result import result_of
    from swarmd.machine_memory import memory_free_bytes, memory_total_bytes

    run = _measured_run(plan)
    require_memory(plan, run, free_bytes=memory_free_bytes(), total_bytes=memory_total_bytes())
    conductor = Conductor(plan, show.fact, show.turn)
    stopped, twin = "", None

    def result() -> Local:
        return result_of(
            conductor,
            loss_share=run.loss_share,
            samples_total=_samples_total(run),
            dense_bytes_per_token=run.shape.dense_bytes(1),
            twin=twin,
            stopped=stopped,
        )

    with show:
        try:
            conductor.run()
            if plan.hold and not (conductor.timed_out or conductor.stalled):
                conductor.hold()
        except (KeyboardInterrupt, exits.Terminated) as signalled:
            stopped = _stopped_by(signalled) if conductor.view.step < plan.steps else ""
        finally:
            conductor.finish()
        if plan.baseline and not stopped and conductor.view.step >= plan.steps:
            show.fact(conductor.elapsed_s, render.verdict_line(result()))
            try:
                twin = _twin(plan, run, conductor, show)
            except (KeyboardInterrupt, exits.Terminated) as signalled:
                stopped = _stopped_by(signalled)
    return result()


def _stopped_by(signalled: BaseException) -> str:
    return exits.failure_of(signalled).code


def _measured_run(plan: LocalPlan) -> RunConfig:
    """The run that the flags mean. Its faults are told as faults of the flags."""
    from swarmd.cli.local_swarm.plan import FLAG_OF_KEY
    from swarmd.errors import UserError
    from swarmd.run_file import read_run_file
    from swarmd.store import write_bytes

    run_file = plan.dir / "run.toml"
    write_bytes(run_file, plan.run_file().encode())
    try:
        return read_run_file(run_file).measure(plan.dir / "cache").config
    except UserError as error:
        found = [key for key in FLAG_OF_KEY if f"{key}:" in str(error)]
        if error.code != "bad_config" or not found:
            raise
        fault = str(error).partition(f"{found[0]}:")[2].strip()
        raise UserError(
            f"{FLAG_OF_KEY[found[0]]}: {fault}",
            code="usage",
            exit_code=2,
            hint=error.hint or "`swarmd local --help` lists the flags",
        ) from None


def _twin(plan: LocalPlan, run: RunConfig, conductor: Conductor, show: Show) -> TwinFigures:
    from swarmd.cli.local_swarm.twin import train_twin

    show.fact(conductor.elapsed_s, "training the twin: the same, in one process")
    return train_twin(
        run.canonical(),
        plan.dir,
        plan.dir / "cache",
        threads=plan.threads,
        timeout_s=max(1.0, plan.timeout_s - conductor.elapsed_s),
        on_step=lambda step, loss: show.twin_step(conductor.elapsed_s, step, loss),
    )


def _samples_total(run: RunConfig) -> int:
    shape = run.shape
    per_round = (shape.micro_batches_of_round(number) for number in range(shape.rounds))
    total = sum(per_round) * shape.micro_batch_samples
    return min(total, shape.samples_total or math.inf)  # type: ignore[return-value]
