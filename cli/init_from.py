"""`run create --init-from`: the start of a run, from a folder into this home.

The states of all stages go where snapshots are guarded, at round 0: whoever takes a stage fetches
it from here like any other, and what the run starts from is part of its id.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from swarmd.checkpoints import CheckpointFolder
from swarmd.cli.model_process import have_done
from swarmd.cli.time_limit import TimeLimit
from swarmd.errors import StoreError, UserError
from swarmd.home import Home
from swarmd.init_from import has_tied_head, init_hash_of
from swarmd.protocols.messages.state import GuardedStage
from swarmd.protocols.wire import encode
from swarmd.run_config import RunConfig


def take_in(home: Home, config: RunConfig, folder: Path, limit: TimeLimit) -> RunConfig:
    """The run that starts from `folder`, with its states in `home`. Raises UserError."""
    run = replace(config, init_hash=init_hash_of(folder, config, limit.reading))
    states = home.cache / "state"
    states.mkdir(mode=0o700, parents=True, exist_ok=True)
    targets = {stage: states / f"import-{stage:02}.safetensors" for stage in range(run.stages)}
    asked = {
        "folder": str(folder),
        "tied": has_tied_head(folder),
        "targets": {str(stage): str(path) for stage, path in targets.items()},
    }
    kept = CheckpointFolder(home.guarded, run.run_id, kept=1)
    try:
        made = have_done("import", run, asked, limit=limit)
        for stage, path in targets.items():
            sketch = tuple(made["sketches"][str(stage)])
            about = GuardedStage(stage=stage, round=0, sketch=sketch)
            kept.keep(path, stage=stage, round_number=0, step=0, ledger=[encode(about)])
    except StoreError as error:
        raise UserError(str(error), code="store_error", exit_code=1) from None
    finally:
        for path in targets.values():
            path.unlink(missing_ok=True)
    return run
