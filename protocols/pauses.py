"""Why this peer computes nothing though it could: the user's word, or a rule of the user's.

Both may hold at once; the word is shown before the rule. A word may carry its own end (`pause
--for`). Rules (hours, battery, idle, quota, temperature) are watched by the daemon, which tells
when one begins and when none holds any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.reasons import STATE_OF_CODE, Reason


@dataclass(slots=True)
class Pauses:
    """`word` and `rule` as they are shown; None: it does not hold."""

    word: Reason | None = None
    rule: Reason | None = None

    @property
    def current(self) -> Reason | None:
        return self.word or self.rule

    def say(self, args: Mapping[str, Any], now_s: float) -> None:
        """The user's `pause`. args: for_s, None until resumed."""
        for_s = args.get("for_s")
        has_end = isinstance(for_s, (int, float)) and for_s > 0
        self.word = Reason(
            code="paused",
            text="by you" if has_end else "by you, until `swarmd resume`",
            eta_at_s=now_s + float(for_s or 0.0) if has_end else None,
            eta_basis="schedule" if has_end else "unknown",
        )

    def obey(self, args: Mapping[str, Any], now_s: float) -> None:
        """The daemon's word about the rules. args: code (None: no rule holds), text, for_s."""
        code = args.get("code")
        if code is None:
            self.rule = None
            return
        if "paused" not in STATE_OF_CODE.get(code, ()):
            raise LocalProtocolError("malformed", f"{code} is no reason to pause")
        for_s = args.get("for_s")
        self.rule = Reason(
            code=code,
            text=str(args.get("text", "")),
            eta_at_s=None if for_s is None else now_s + float(for_s),
            eta_basis="unknown" if for_s is None else "schedule",
        )

    def is_over(self, now_s: float) -> bool:
        """Whether a word with an end has come to it. It no longer holds then."""
        word = self.word
        if word is None or word.eta_at_s is None or now_s < word.eta_at_s:
            return False
        self.word = None
        return True
