"""Tokenisers' files in the cache, under their hash: right wherever they came from."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

TOKENISERS = "tokenisers"
NAME = re.compile(r"[0-9a-f]{64}")
"""A tokeniser that is a file, as a run names it: BLAKE2b-256."""


def keep(body: bytes, cache_dir: Path) -> Path:
    """Put a tokeniser's file into the cache under its hash. Raises OSError."""
    path = cached_file(name_of(body), cache_dir)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
    os.replace(aside, path)
    return path


def find(name: str, cache_dir: Path) -> bytes | None:
    """The file of that name; None if there is none, or it is not what its name says."""
    try:
        body = cached_file(name, cache_dir).read_bytes()
    except OSError:
        return None
    return body if name_of(body) == name else None


def cached_file(name: str, cache_dir: Path) -> Path:
    return cache_dir / TOKENISERS / f"{name}.json"


def name_of(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()
