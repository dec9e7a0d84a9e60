"""RunConfig: everything that must be equal on every peer of a run. Its hash names the run.

Frozen values with their checks; no files, no defaults from the machine. The run file (TOML) that
people write is read in swarmd/run_file.py, where presets fill in what it leaves out. What is mine
alone (device, limits, ports, paths) is PeerConfig, in swarmd/peer_config.py.

Canonical form: msgpack of nested maps with sorted keys; `run_id` is its BLAKE2b-256.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import chain
from typing import Any, get_type_hints

import msgpack

from swarmd.named_limits import TIME_SCALES
from swarmd.protocols.ids import RunId
from swarmd.protocols.mix_parts import DENSE_WIRES
from swarmd.protocols.run_shape import RunShape
from swarmd.run_checks import (
    MODEL_SIZES_MAX,
    InvalidRun,
    check_hash,
    check_integer,
    check_model_size,
    check_name,
    check_operators,
    require,
)

BOUNDARY_KINDS = ("dense", "subspace", "anchored")
WIRE_DTYPES = ("fp32", "bf16", "int8")
INNER_KINDS = ("adamw", "nadamw", "muon")
__all__ = ["InvalidRun", "RunConfig", "run_from_canonical", "run_from_plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama: RMSNorm, RoPE, SwiGLU, grouped-query attention, untied head, no biases."""

    vocab_size: int
    width: int
    """d, the residual stream."""
    layers: int
    heads: int
    kv_heads: int
    ff_width: int
    """f, the SwiGLU's inner width."""
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in MODEL_SIZES_MAX:
            check_model_size(name, getattr(self, name))
        require(self.width % self.heads == 0, "model.heads", "must divide model.width")
        require((self.width // self.heads) % 2 == 0, "model.heads", "head width must be even")
        require(self.heads % self.kv_heads == 0, "model.kv_heads", "must divide model.heads")
        require(self.rope_base > 0, "model.rope_base", "must be positive")
        require(self.norm_eps > 0, "model.norm_eps", "must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryConfig:
    """What crosses from one stage to the next (algorithms.md 1)."""

    kind: str = "subspace"
    rank: int = 0
    """k, the coefficients per token. 0 if and only if dense."""
    anchor_rank: int = 0
    """Anchored only: rank of the private token table, -1 for a full one."""
    wire: str = "int8"
    """fp32, bf16, or int8 with a scale per token row."""
    table_std: float = 0.02
    """Standard deviation of T_fixed."""

    def __post_init__(self) -> None:
        require(self.kind in BOUNDARY_KINDS, "boundary.kind", f"one of {BOUNDARY_KINDS}")
        require(self.wire in WIRE_DTYPES, "boundary.wire", f"one of {WIRE_DTYPES}")
        require(
            self.rank >= 0 and (self.rank == 0) == (self.kind == "dense"),
            "boundary.rank",
            "is 0 for dense boundaries and at least 1 otherwise",
        )
        require(
            (self.anchor_rank == 0) == (self.kind != "anchored") and self.anchor_rank >= -1,
            "boundary.anchor_rank",
            "is given for anchored boundaries only: a rank, or -1 for a full table",
        )
        require(self.table_std > 0, "boundary.table_std", "must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerConfig:
    """The inner optimiser (algorithms.md 3). The learning rate follows the step's number."""

    kind: str = "adamw"
    lr: float = 2e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0
    """Of the whole model's gradient norm; each stage clips at clip / sqrt(stages)."""
    warmup_steps: int = 40
    final_lr_ratio: float = 0.1
    """The cosine ends here, at total_steps."""

    def __post_init__(self) -> None:
        require(self.kind in INNER_KINDS, "inner.kind", f"one of {INNER_KINDS}")
        require(self.lr > 0, "inner.lr", "must be positive")
        betas_fit = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        require(betas_fit, "inner.beta1", "betas are from 0 to below 1")
        require(self.eps > 0, "inner.eps", "must be positive")
        require(self.clip > 0, "inner.clip", "must be positive")
        require(self.warmup_steps >= 0, "inner.warmup_steps", "must not be negative")
        require(0 <= self.final_lr_ratio <= 1, "inner.final_lr_ratio", "is in 0..1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterConfig:
    """The outer round between replicas: Factored Gossip DiLoCo (algorithms.md 2)."""

    alpha: float = 1.0
    mu: float = 0.0
    mix1_group: int = 0
    """Mix1's group size; 0: all replicas, 1: off."""
    mix2_group: int = 4
    """Mix2's group size; 0: all replicas, 1: off."""
    mix2_cover: str = "all"
    """all, or shallow (embeddings, head and the first layers)."""
    mix1_wire: str = "bf16"
    mix2_wire: str = "fp32"
    mix1_blocking: bool = False
    """For comparison with plain DiLoCo only: wait for Mix1 instead of hiding it."""
    sparse_topk: float = 0.0
    """Share of Mix2's entries that travel, with error feedback; 0: all."""
    robust: str = "none"
    """none or centered_clip."""

    def __post_init__(self) -> None:
        require(0 < self.alpha <= 2, "outer.alpha", "is above 0, at most 2")
        require(0 <= self.mu < 1, "outer.mu", "is from 0 to below 1")
        require(self.mix1_group >= 0, "outer.mix1_group", "must not be negative")
        require(self.mix2_group >= 0, "outer.mix2_group", "must not be negative")
        require(self.mix2_cover in ("all", "shallow"), "outer.mix2_cover", "all or shallow")
        require(self.mix1_wire in DENSE_WIRES, "outer.mix1_wire", f"one of {DENSE_WIRES}")
        require(self.mix2_wire in DENSE_WIRES, "outer.mix2_wire", f"one of {DENSE_WIRES}")
        require(0 <= self.sparse_topk <= 1, "outer.sparse_topk", "is in 0..1")
        require(
            self.mu == 0 or self.sparse_topk == 0,
            "outer.sparse_topk",
            "keeps what it does not send, which is momentum already: outer.mu must be 0",
        )
        require(self.robust in ("none", "centered_clip"), "outer.robust", "none, centered_clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the samples come from. `content_hash` makes two peers' copies comparable."""

    source: str = "builtin:python"
    content_hash: str = ""
    tokeniser: str = "bytes"
    """bytes, or the BLAKE2b-256 of a tokenizer.json."""
    held_out_share: float = 0.05
    held_out_sequences: int = 64
    """How many held-out sequences are looked at, the same ones every time."""
    epochs: int = 0
    """0: repeat until total_steps."""
    samples_total: int = 0
    """How many samples all epochs have together, measured when the run is made; 0 if they repeat.
    The last micro-batch may be short and those after it do not exist."""

    def __post_init__(self) -> None:
        require(":" in self.source, "run.data", "has the form KIND:WHAT")
        check_hash(self.content_hash, "data.content_hash")
        require(0 < self.held_out_share < 0.5, "data.held_out_share", "is above 0, below 0.5")
        require(self.held_out_sequences >= 1, "data.held_out_sequences", "must be at least 1")
        require(self.epochs >= 0, "run.data_epochs", "must not be negative")
        require(self.samples_total >= 0, "data.samples_total", "must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The immutable description of one training."""

    name: str
    preset: str
    """Where the sizes came from; said, never used."""
    model: ModelConfig
    boundary: BoundaryConfig
    inner: InnerConfig
    outer: OuterConfig
    data: DataConfig
    layer_ranges: tuple[tuple[int, int], ...]
    """One (first, last) a stage, inclusive, contiguous, covering every layer."""
    inner_steps: int
    """H, inner steps in an outer round."""
    total_steps: int
    sequence_tokens: int
    micro_batch_tokens: int
    batch_tokens: int
    """One inner step, over all heads."""
    seed: int
    peers_min: int = 1
    protocol_min: int = 1
    protocol_max: int = 1
    operators: tuple[str, ...] = ()
    guard_rounds: int = 5
    """Every so many rounds a stage's snapshot goes to guardians; 0: at the end only."""
    guard_copies: int = 2
    """To so many of them, peers of other stages; 0: to none."""
    init_hash: str = ""
    """Hash of the start state when it is an imported model; empty: from the seed."""
    allow_injection: bool = False
    loss_share: float = 1.0
    """What `local` expects of 100 steps and more: last loss at most this share of the first."""
    time_scale: str = "wan"
    """Which named limits hold: wan, or local."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_operators(self.operators)
        self._check_ranges()
        require(self.inner_steps >= 1, "run.inner_steps", "must be at least 1")
        require(self.guard_rounds >= 0, "run.guard_rounds", "must not be negative")
        require(self.guard_copies >= 0, "run.guard_copies", "must not be negative")
        require(self.total_steps >= 1, "run.total_steps", "must be at least 1")
        require(self.sequence_tokens >= 2, "run.sequence_tokens", "must be at least 2")
        require(
            self.micro_batch_tokens >= 1 and self.micro_batch_tokens % self.sequence_tokens == 0,
            "run.micro_batch_tokens",
            "must be a multiple of run.sequence_tokens",
        )
        require(
            self.batch_tokens >= 1 and self.batch_tokens % self.micro_batch_tokens == 0,
            "run.batch_tokens",
            "must be a multiple of run.micro_batch_tokens",
        )
        if self.boundary.kind != "dense":
            require(
                self.boundary.rank < self.model.width, "boundary.rank", "must be below model.width"
            )
        if self.data.epochs or self.data.samples_total:
            require(
                self.data.epochs > 0 and self.data.samples_total > 0,
                "data.samples_total",
                "goes with run.data_epochs, neither without the other",
            )
            require(
                (self.total_steps - 1) * self.batch_samples < self.data.samples_total,
                "run.total_steps",
                "is more than run.data_epochs give samples for",
            )
        require(self.peers_min >= 1, "run.peers_min", "must be at least 1")
        check_hash(self.init_hash, "run.init_hash")
        require(0 < self.loss_share <= 1, "run.loss_share", "is above 0, at most 1")
        require(self.time_scale in TIME_SCALES, "run.time_scale", f"one of {TIME_SCALES}")
        require(1 <= self.protocol_min <= self.protocol_max, "run.protocol", "min is above max")

    def _check_ranges(self) -> None:
        require(len(self.layer_ranges) >= 1, "run.stages", "must be at least 1")
        expected = 0
        for first, last in self.layer_ranges:
            require(
                first == expected and last >= first,
                "run.layer_ranges",
                "must be contiguous, one or more layers a stage",
            )
            expected = last + 1
        require(expected == self.model.layers, "run.layer_ranges", "must cover every layer")

    # ------------------------------------------------------------------------------- derived sizes

    @property
    def stages(self) -> int:
        return len(self.layer_ranges)

    @property
    def micro_batch_samples(self) -> int:
        return self.micro_batch_tokens // self.sequence_tokens

    @property
    def batch_samples(self) -> int:
        """Sequences in one inner step, over all heads."""
        return self.batch_tokens // self.sequence_tokens

    @property
    def micro_batches_per_step(self) -> int:
        return self.batch_tokens // self.micro_batch_tokens

    @property
    def shape(self) -> RunShape:
        """What the machines need to know; the clock's arithmetic lives there."""
        held_out = -(-self.data.held_out_sequences // self.micro_batch_samples)
        return RunShape(
            run_id=self.run_id,
            stages=self.stages,
            inner_steps=self.inner_steps,
            total_steps=self.total_steps,
            micro_batches_per_step=self.micro_batches_per_step,
            micro_batch_samples=self.micro_batch_samples,
            sequence_tokens=self.sequence_tokens,
            samples_total=self.data.samples_total,
            held_out_micro_batches=held_out,
            width=self.model.width,
            peers_min=self.peers_min,
            protocol_min=self.protocol_min,
            protocol_max=self.protocol_max,
            seed=self.seed,
        )

    @property
    def rounds(self) -> int:
        """Outer rounds of the run; the last may be short."""
        return -(-self.total_steps // self.inner_steps)

    def steps_of_round(self, round_number: int) -> int:
        """H, or what is left for the last round."""
        return min(self.inner_steps, self.total_steps - round_number * self.inner_steps)

    def micro_batches_of_round(self, round_number: int) -> int:
        """M_b."""
        return self.shape.micro_batches_of_round(round_number)

    def step_of(self, round_number: int, index: int) -> int:
        """The step tag of a micro-batch, counted over the whole run (algorithms.md 3.1)."""
        return round_number * self.inner_steps + index // self.micro_batches_per_step

    # ----------------------------------------------------------------------------------- canonical

    def canonical(self) -> bytes:
        """Equal on every peer, whatever its Python or platform."""
        body: bytes = msgpack.packb(_sorted_plain(asdict(self)), use_bin_type=True)
        return body

    @property
    def run_id(self) -> RunId:
        return RunId(hashlib.blake2b(self.canonical(), digest_size=32).hexdigest())


def run_from_canonical(body: bytes) -> RunConfig:
    """The inverse of `canonical`, from untrusted bytes. Raises InvalidRun."""
    from swarmd.protocols.errors import RemoteProtocolError
    from swarmd.protocols.wire import unpack

    try:
        plain = unpack(body)
    except RemoteProtocolError as error:
        raise InvalidRun("run", str(error)) from None
    return run_from_plain(plain)


def run_from_plain(plain: Any) -> RunConfig:
    """From nested plain values. Raises InvalidRun, also for unknown or missing keys."""
    run = _build(RunConfig, plain, "run")
    assert isinstance(run, RunConfig)
    return run


def _build(kind: type[Any], plain: Any, where: str) -> Any:
    require(isinstance(plain, dict), where, "not a table")
    hints = get_type_hints(kind)
    known = {item.name: item for item in fields(kind)}
    for key in plain:
        require(key in known, f"{where}.{key}", "unknown key")
    values = {}
    for name in known:
        if name in plain:
            values[name] = _convert(hints[name], plain[name], f"{where}.{name}")
    try:
        return kind(**values)
    except TypeError as error:
        raise InvalidRun(where, str(error)) from None


def _convert(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, where)
    if kind is float:
        require(
            type(value) in (int, float) and math.isfinite(value), where, "must be a finite number"
        )
        return float(value)
    if kind in (int, str, bool):
        require(type(value) is kind, where, f"must be of type {kind.__name__}")
        if kind is int:
            check_integer(value, where)
        return value
    require(isinstance(value, (list, tuple)), where, "must be a list")
    if kind == tuple[str, ...]:
        require(all(type(item) is str for item in value), where, "must be a list of texts")
        return tuple(value)
    pairs = [tuple(item) if isinstance(item, (list, tuple)) else item for item in value]
    require(
        all(
            isinstance(item, tuple) and len(item) == 2 and all(type(x) is int for x in item)
            for item in pairs
        ),
        where,
        "must be a list of [first, last]",
    )
    for number in chain.from_iterable(pairs):
        check_integer(number, where)
    return tuple(pairs)


def _sorted_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_plain(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_sorted_plain(item) for item in value]
    return value
