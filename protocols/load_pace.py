"""When a worker will hold the stage that it loads: what a person who waits wants to know.

By what loading took before in this life, scaled by the size of the state; at the first time by the
size and the rate at which the state came and was written, since it is read back from there. Both
are guesses: when they have passed, or where nothing was measured, the deadline is told at which the
worker is given up and begun anew.
"""

from __future__ import annotations

from swarmd.protocols.reasons import Reason

LOADED_WITHIN_S = 900.0
"""Import, packing of the data, loading: minutes on a slow disk. The driver gives a worker up that
takes longer and tells of no progress."""


class LoadPace:
    """Of one peer's workers, one after the other."""

    def __init__(self) -> None:
        self._begun_s: float | None = None
        self._size_bytes = 0
        self._usual_s: float | None = None
        """Seconds that it should take, as far as that can be known."""
        self._last: tuple[float, int] | None = None
        """(seconds, bytes) of the last one that came to its end."""

    def begin(self, size_bytes: int, bytes_per_s: float | None, now_s: float) -> None:
        """size_bytes: of the state, 0 where it is made from the seed. bytes_per_s: at which it was
        fetched."""
        self._begun_s, self._size_bytes = now_s, size_bytes
        self._usual_s = None
        if self._last is not None:
            last_s, last_bytes = self._last
            self._usual_s = last_s * (size_bytes / last_bytes if size_bytes and last_bytes else 1.0)
        elif size_bytes and bytes_per_s:
            self._usual_s = size_bytes / bytes_per_s

    def ended(self, now_s: float) -> None:
        """It is loaded."""
        if self._begun_s is not None:
            self._last = (now_s - self._begun_s, self._size_bytes)
            self._begun_s = None

    def reason(self, stage: int | None, now_s: float) -> Reason:
        """What to show meanwhile."""
        begun_s = now_s if self._begun_s is None else self._begun_s
        eta_at_s, basis = begun_s + LOADED_WITHIN_S, "deadline"
        if self._usual_s is not None and now_s < begun_s + self._usual_s:
            eta_at_s, basis = begun_s + self._usual_s, "measured"
        size = f", {self._size_bytes / 1e6:.3g} MB" if self._size_bytes else ""
        return Reason(
            code="state_verifying",
            text=f"loading stage {stage}{size}",
            stage=stage,
            eta_at_s=eta_at_s if now_s < eta_at_s else None,
            eta_basis=basis if now_s < eta_at_s else "unknown",
        )
