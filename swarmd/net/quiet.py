"""libp2p logs to its own loggers and, without asking, to the root one. Neither is ours to read."""

from __future__ import annotations

import logging


def silence_libp2p() -> None:
    """Drop what the library logs. Safe to call again."""
    library = logging.getLogger("libp2p")
    library.setLevel(logging.CRITICAL + 1)
    # Some of its modules set a level of their own; what they log goes no further than here.
    library.propagate = False
    if not library.handlers:
        library.addHandler(logging.NullHandler())
    root = logging.getLogger()
    if not any(isinstance(found, _NotLibp2p) for found in root.filters):
        # A filter of a logger sees only what is logged on that very logger.
        root.addFilter(_NotLibp2p())
    if not root.handlers:
        # Else its first call of logging.debug() would install a handler on standard error.
        root.addHandler(logging.NullHandler())


class _NotLibp2p(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "/libp2p/" not in record.pathname
