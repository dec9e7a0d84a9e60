"""One pass over a source: what was left out, and how far it is.

A source of files knows their sizes, so whoever reads it can say how much of it is behind and about
when it will end. Sizes are those on disk: of a packed file it counts how much of that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


def _nowhere() -> int:
    return 0


@dataclass(slots=True)
class Reading:
    """Filled in by readers; anew for each pass."""

    empty_texts: int = 0
    """Texts without a character."""
    size_bytes: int = 0
    """Of all files. 0: unknown, as of a data set that comes over the network."""
    behind_bytes: int = 0
    """Of the files that were read to their end."""
    place: Callable[[], int] = _nowhere
    """Where in the present file the reader is."""

    def files(self, found: list[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
        """These, one after the other, each while it is read."""
        sizes = [_size_of(path) for _, path in found]
        self.size_bytes += sum(sizes)
        for (name, path), size_bytes in zip(found, sizes, strict=True):
            yield name, path
            self.place = _nowhere
            self.behind_bytes += size_bytes

    @property
    def share(self) -> float | None:
        """Of the source, so far; None if that cannot be known."""
        if not self.size_bytes:
            return None
        return min(1.0, (self.behind_bytes + self.place()) / self.size_bytes)


def _size_of(path: Path) -> int:
    """Who opens it says why it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
