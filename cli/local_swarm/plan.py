"""What one `swarmd local` is to do, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swarmd.cli.local_swarm.events import Event
from swarmd.errors import UserError
from swarmd.partition import stage_bytes
from swarmd.run_config import RunConfig

PEER_BYTES = 400 << 20
"""A daemon and its worker with the smallest stage, resident (docs/lab.md, everyday use)."""
FLAG_OF_KEY = {
    "run.preset": "--preset",
    "run.stages": "--stages",
    "run.total_steps": "--steps",
    "run.inner_steps": "--inner-steps",
    "run.peers_min": "--peers",
    "run.data": "--data",
    "boundary.rank": "--rank",
    "boundary.kind": "--boundary",
    "boundary.anchor_rank": "--boundary",
    "boundary.wire": "--wire",
}
"""Which flag a key of the run file came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """The flags of docs/cli.md section 15, parsed. None: as the preset says."""

    peers: int
    stages: int
    steps: int
    preset: str
    inner_steps: int
    seed: int
    loss_target: str
    """A number, auto or none."""
    threads: int
    timeout_s: float
    dir: Path
    dir_is_ours: bool
    """Made for this command: removed after success unless `keep`."""
    keep: bool
    hold: bool
    rank: int | None
    boundary: str | None
    wire: str | None
    data: str | None
    shape: str | None
    baseline: bool
    events: tuple[Event, ...]
    injections: tuple[tuple[int, str], ...]
    """(peer, SPEC)."""
    command: str
    """What repeats this run."""

    def __post_init__(self) -> None:
        if self.peers < self.stages:
            raise UserError(
                f"--peers {self.peers} is below --stages {self.stages}: every stage needs a peer",
                code="usage",
                exit_code=2,
                hint=f"use --peers {self.stages} or more",
            )

    def stage_of(self, number: int) -> int:
        """The fixed map: peers are dealt to the stages in turn."""
        return number % self.stages

    def run_file(self) -> str:
        """The run in TOML, as `swarmd run create` takes it."""
        lines = [
            "[run]",
            'name = "local"',
            f'preset = "{self.preset}"',
            f"stages = {self.stages}",
            f"inner_steps = {self.inner_steps}",
            f"total_steps = {self.steps}",
            f"seed = {self.seed}",
            f"peers_min = {self.peers}",
            'time_scale = "local"',
        ]
        if self.data is not None:
            lines.append(f"data = {quoted(self.data)}")
        boundary = self._boundary_lines()
        if boundary:
            lines += ["", "[boundary]", *boundary]
        return "\n".join([*lines, "", "[test]", "allow_injection = true", ""])

    def _boundary_lines(self) -> list[str]:
        kind, _, anchor = (self.boundary or "").partition(":")
        lines = []
        if self.rank == 0:
            kind = "dense"
        if kind:
            lines.append(f"kind = {quoted(kind)}")
        if anchor and anchor != "full" and not anchor.isdigit():
            raise UserError(
                f"--boundary: {anchor!r} is no rank",
                code="usage",
                exit_code=2,
                hint="a right one: anchored:16, or anchored:full",
            )
        if anchor:
            lines.append(f"anchor_rank = {-1 if anchor == 'full' else anchor}")
        elif kind == "anchored":
            lines.append("anchor_rank = -1")
        if self.rank or kind == "dense":
            lines.append(f"rank = {self.rank or 0}")
        if self.wire:
            lines.append(f"wire = {quoted(self.wire)}")
        return lines


def require_memory(plan: LocalPlan, run: RunConfig, *, free_bytes: int, total_bytes: int) -> None:
    """Raise UserError where the peers would not fit: 75 if they might later, else 77."""
    need = sum(PEER_BYTES + stage_bytes(run, plan.stage_of(number)) for number in range(plan.peers))
    if need <= free_bytes:
        return
    raise UserError(
        f"{plan.peers} peers need about {_gigabytes(need)}, {_gigabytes(free_bytes)} are free",
        code="memory_short",
        exit_code=75 if need <= total_bytes else 77,
        hint="fewer --peers, a smaller --preset, or more --stages",
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def parse_injection_target(text: str, peer_count: int) -> tuple[int, str]:
    """`pN:SPEC` to (N, SPEC). Raises UserError (exit 2)."""
    from swarmd.injection import parse_injection
    from swarmd.units import BadValue

    name, colon, spec = text.partition(":")
    number = name.removeprefix("p")
    fault = None
    if not colon or not name.startswith("p") or not number.isdigit() or int(number) >= peer_count:
        fault = f"has the form pN:SPEC, with p0 to p{peer_count - 1}"
    else:
        try:
            return int(number), parse_injection(spec).text
        except BadValue as error:
            fault = str(error)
    raise UserError(
        f"--inject {text!r}: {fault}",
        code="usage",
        exit_code=2,
        hint="a right one: p2:nan_update@round=3",
    )


def quoted(text: str) -> str:
    """A TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def prepare_dir(path: Path) -> None:
    """Make the directory, which must be empty or not exist yet. Raises UserError (exit 2)."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UserError(
                f"--dir {path} is not empty",
                code="usage",
                exit_code=2,
                hint="name a directory that is empty or does not exist yet",
            )
    except (OSError, ValueError) as error:
        raise UserError(
            f"--dir {path}: {getattr(error, 'strerror', None) or error}",
            code="usage",
            exit_code=2,
            hint="name a directory that can be made",
        ) from None
