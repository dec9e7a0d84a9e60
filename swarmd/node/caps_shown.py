"""Our own caps on traffic as a health item, while transfers really wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from swarmd.health import HealthBook
from swarmd.net.transport import CapHeld

BITES_SHARE = 0.1
"""Less of the time than this is nothing to act on."""
WORDS = {"up": "upload", "down": "download"}


def hold_caps(health: HealthBook, caps: Sequence[CapHeld], round_s: float | None) -> None:
    """Holds or clears `rate_capped`. round_s: what an outer round usually takes, if known."""
    biting = [cap for cap in caps if cap.share >= BITES_SHARE]
    if not biting:
        health.clear("rate_capped")
        return
    held = " and ".join(f"{WORDS[cap.way]} is held at {_rate(cap)} by your limit" for cap in biting)
    most = max(cap.share for cap in biting)
    impact = f"transfers waited for it {most * 100:.0f} % of the last half minute"
    if round_s is not None:
        impact += f", about {most * round_s:.0f} s of each round"
    settings = " and ".join(f"`limit_{cap.way}`" for cap in biting)
    fix = f"raise {settings}, or leave it: your work still counts"
    health.hold("rate_capped", held, impact=impact, fix=fix)


def _rate(cap: CapHeld) -> str:
    return f"{cap.bytes_per_s * 8 / 1e6:.3g} Mbit/s"
