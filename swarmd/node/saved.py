"""What a home holds of a run when its daemon starts: the states that its peer may go on from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swarmd.checkpoints import Checkpoint, CheckpointFolder, Unusable
from swarmd.errors import Corrupt, StoreError
from swarmd.home import Home
from swarmd.peer_config import PeerConfig
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.messages.state import GuardedStage
from swarmd.protocols.saved_states import SavedState, name_of_guarded
from swarmd.protocols.state_donor import Guarded
from swarmd.protocols.wire import decode
from swarmd.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class FoundStates:
    folder: CheckpointFolder
    saved: tuple[SavedState, ...]
    """Newest first, every byte of them read."""
    unusable: tuple[Unusable, ...]
    guarded_folder: CheckpointFolder | None = None
    guarded: tuple[Guarded, ...] = ()
    """Of other stages."""

    @property
    def has_history(self) -> bool:
        """This home has trained before: its peer must not begin as if nobody had."""
        is_of_training = any(guarded.round > 0 for guarded in self.guarded)
        return bool(self.saved or self.unusable or is_of_training)


def saved_of(home: Home, run: RunConfig, config: PeerConfig) -> FoundStates:
    """Blocking: reads whole checkpoints. An observer has no use for any."""
    folder = CheckpointFolder(home.checkpoints, run.run_id)
    if config.observe:
        return FoundStates(folder, (), ())
    found = states_in(folder, config.wanted_stage)
    guards = CheckpointFolder(home.guarded, run.run_id, kept=1)
    guarded, unusable = guarded_in(guards, run.stages)
    return replace(
        found, guarded_folder=guards, guarded=guarded, unusable=(*found.unusable, *unusable)
    )


def guarded_in(
    folder: CheckpointFolder, stages: int
) -> tuple[tuple[Guarded, ...], tuple[Unusable, ...]]:
    """Blocking. The newest of each stage, every byte read."""
    guarded, passed_over = [], []
    try:
        folder.tidy()
        for stage in range(stages):
            sound, unusable = folder.find(stage)
            guarded += [_guarded(checkpoint) for checkpoint in sound[:1]]
            passed_over += unusable
    except (OSError, StoreError) as error:
        passed_over.append(Unusable(folder.path, str(error)))
    return tuple(guarded), tuple(passed_over)


def _guarded(checkpoint: Checkpoint) -> Guarded:
    """Raises StoreError."""
    ledger = _saved(checkpoint).ledger
    about = [item for item in ledger if isinstance(item, GuardedStage)]
    return Guarded(
        checkpoint.stage,
        checkpoint.round,
        checkpoint.step,
        name_of_guarded(checkpoint.stage, checkpoint.round),
        about[0].sketch if about else (),
        sum(file.bytes for file in checkpoint.files),
        tuple(item for item in ledger if not isinstance(item, GuardedStage)),
    )


def states_in(folder: CheckpointFolder, stage: int | None) -> FoundStates:
    """Blocking. stage: None for that held last."""
    try:
        folder.tidy()
        sound, unusable = folder.find(stage)
    except (OSError, StoreError) as error:
        return FoundStates(folder, (), (Unusable(folder.path, str(error)),))
    saved = []
    for checkpoint in sound:
        try:
            saved.append(_saved(checkpoint))
        except StoreError as error:
            unusable.append(Unusable(checkpoint.folder, str(error)))
    return FoundStates(folder, tuple(saved), tuple(unusable))


def _saved(checkpoint: Checkpoint) -> SavedState:
    try:
        ledger = tuple(decode(body) for body in checkpoint.ledger())
    except RemoteProtocolError as error:
        raise Corrupt(checkpoint.folder, f"holds no ledger: {error}") from None
    return SavedState(checkpoint.stage, checkpoint.round, checkpoint.step, ledger)
