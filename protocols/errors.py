"""Errors of floor 0. Who is to blame is in the type; why, in the code.

    SwarmdError
      ProtocolError(code)
        LocalProtocolError    we were about to break a rule: our bug
        RemoteProtocolError   a peer broke one: count it against the peer, change nothing

The other branches of the tree live in swarmd/errors.py.
"""

from __future__ import annotations


class SwarmdError(Exception):
    """Base of every error this project raises on purpose."""


class ProtocolError(SwarmdError):
    """A rule between peers was broken. `code` is stable and appears in status and logs."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text


class LocalProtocolError(ProtocolError):
    """We tried something the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """A peer sent something the protocol forbids. The only thing peer bytes may cause.

    `code` is one of the rejection codes: late, not_finite, norm_too_large, wrong_shape,
    wrong_dtype, wrong_stage, wrong_round, wrong_run, wrong_basis, bad_signature, not_the_owner,
    duplicate, hash_mismatch, too_large, rate_exceeded, malformed, unknown_lease, silent,
    unreachable, copy_suspected, no_effect, clipped.
    """
