"""What a simulated run is told, and what it tells: the flags and the object of `swarmd sim`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OK, INVARIANT_BROKEN, TARGET_MISSED, PEER_CRASHED = 0, 10, 11, 12
OUTCOMES = {
    OK: "target_reached",
    INVARIANT_BROKEN: "invariant_broken",
    TARGET_MISSED: "target_missed",
    PEER_CRASHED: "peer_crashed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """The flags of `swarmd sim`. What is None is drawn from the seed."""

    peers: int = 12
    stages: int = 3
    rounds: int = 3
    seed: int = 1
    rtt_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    loss: float | None = None
    kill: int | None = None
    scenario: str | None = None
    trace: bool = False
    until_failure: bool = False
    seeds_max: int = 1_000_000
    """How many seeds `until_failure` tries."""
    exact: bool = False
    """Encode and decode every message."""
    round_s: float = 10.0
    """About what an outer round of whole peers takes; faults strike for so long a round."""
    coordinator_only: bool = False
    """Peers made of membership and placement, whose work is only pretended; else whole peers."""

    def command(self) -> str:
        """Repeats this very run."""
        words = [f"swarmd sim --peers {self.peers} --stages {self.stages}"]
        words.append(f"--rounds {self.rounds} --seed {self.seed}")
        if self.rtt_s is not None:
            words.append(f"--rtt {self.rtt_s * 1000:g}ms")
        if self.bandwidth_bytes_per_s is not None:
            words.append(f"--bw {self.bandwidth_bytes_per_s * 8 / 1e6:g}mbit")
        if self.loss is not None:
            words.append(f"--loss {self.loss:g}")
        if self.kill is not None:
            words.append(f"--kill {self.kill}")
        if self.scenario is not None:
            words.append(f"--scenario {self.scenario}")
        if self.round_s != 10.0:
            words.append(f"# rounds of {self.round_s:g} s")
        if self.coordinator_only:
            words.append("# coordinator only")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class SimResult:
    """`swarmd.sim` (docs/cli.md, section 15)."""

    outcome: str
    exit_code: int
    seed: int
    command: str
    trace_hash: str
    events: int
    virtual_s: float
    faults_drawn: tuple[str, ...]
    violations: tuple[str, ...]
    rounds: int
    """Outer rounds of the run; coordinator only: as asked for."""
    tokens_per_s: float | None
    bytes_per_peer_per_s: float
    messages_per_peer_per_s: float
    wait_share_by_reason: dict[str, float]
    settled_after_s: float | None = None
    """After healing: until all agreed, or had finished their run."""

    def to_json(self) -> dict[str, Any]:
        return {"schema": "swarmd.sim", "schema_version": 1, **asdict(self)}
