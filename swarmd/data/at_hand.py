"""Whether a run's data look to be on this machine, asked before a first stage is taken.

Nothing is read: a peer that has nothing of them must not fetch a first stage's state for nothing,
and keep the stage from who could hold it. That what is here is also the run's shows when it is
opened (corpus.py).
"""

from __future__ import annotations

import glob
import os
from pathlib import Path

from swarmd.run_config import RunConfig

WITHOUT_FILES = ("builtin", "hf")
"""Kinds of sources that name no files of this machine."""


def is_at_hand(run: RunConfig, cache_dir: Path, source: str | None = None) -> bool:
    """Files where the run, or `source` in its place, says, or packed in the cache. Blocking."""
    kind, _, what = (source or run.data.source).partition(":")
    if kind in WITHOUT_FILES:
        return True
    pattern = what if kind in ("text", "tokens") else what.rpartition("#")[0]
    if next(glob.iglob(os.path.expanduser(pattern), recursive=True), None) is not None:
        return True
    from swarmd.data.corpus import packed_folder  # loads numpy, which most daemons do without

    return packed_folder(run.data, run.sequence_tokens, cache_dir).is_dir()
