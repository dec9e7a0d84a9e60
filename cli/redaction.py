"""Takes out of a text what must not leave this machine: secrets, and whose machine it is.

    keys and tokens      `token=...`, `Authorization: ...`, `hf_...`, `user:pass@` in addresses,
                         values of variables and settings whose names say that they are secret
    the user             the home directory becomes ~, the login name USER, the host name HOST
    addresses            public IP addresses become ip-1, ip-2 ...: the same one the same way, so
                         that a report can still be followed. Loopback and private ones stay

Peer ids and run ids stay: they are public, and a report without them tells nothing. This is a net
under what never writes secrets in the first place, not the only thing that holds them back.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

REMOVED = "[removed]"
_SECRET_NAME = r"[\w.-]*(?:token|secret|passw(?:or)?d|api_?key|credentials?|private_?key)"
"""Only names that end so: `tokens_per_s` is no secret."""
_RULES = (
    re.compile(rf"""(?i)(["']?{_SECRET_NAME}["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&}}]+)"""),
    re.compile(r"(?i)(authorization\s*[=:]\s*(?:bearer|basic)?\s*)(\S+)"),
    re.compile(r"()(\b(?:hf|ghp|gho|github_pat|sk|glpat|xox[bp])[_-][A-Za-z0-9_-]{12,})"),
    re.compile(r"(\b[a-z][a-z0-9+.-]*://)([^\s/@:]+:[^\s/@]+(?=@))"),
    re.compile(r"()(-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----)", re.S),
)
_IP4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
_IP6 = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])")


@dataclass(slots=True)
class Redaction:
    """One report's: remembers which address became which number."""

    user_directory: str = ""
    user_name: str = ""
    host_name: str = ""
    _numbers: dict[str, int] = field(default_factory=dict)

    def apply(self, text: str) -> str:
        """The text without what is listed above."""
        for rule in _RULES:
            text = rule.sub(lambda found: f"{found[1]}{REMOVED}", text)
        if len(self.user_directory) > 1:
            text = re.sub(rf"{re.escape(self.user_directory)}(?![\w-])", "~", text)
        for name, word in ((self.user_name, "USER"), (self.host_name, "HOST")):
            if len(name) > 2 and name != "root":
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", word, text)
        return _IP6.sub(self._address, _IP4.sub(self._address, text))

    def _address(self, found: re.Match[str]) -> str:
        text = found[0]
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text  # a version, a time of day
        if not address.is_global:
            return text
        return f"ip-{self._numbers.setdefault(str(address), len(self._numbers) + 1)}"
