"""`swarmd peers` for people: one line a peer (docs/cli.md 17.2)."""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.cli import format as f
from swarmd.cli.layout import table, wrap
from swarmd.cli.output import harmless
from swarmd.peers_record import PeerRow

_NOW_S = 0.95
"""A reply younger than this is `now`."""


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cell: str
    """Name of the function below that fills it."""
    is_number: bool = False
    rank: int = 0
    """Lines too wide for the terminal lose the columns with the highest rank first."""


def peer_lines(
    rows: list[PeerRow], width: int, *, known: int, tokens_per_s: float | None
) -> list[str]:
    """The table and a line that sums it up. known: of all peers, shown or not."""
    ordered = sorted(rows, key=lambda row: (row.stage is None, row.stage or 0, row.id))
    names = {row.id: _name(row, ordered) for row in ordered}
    columns = list(_COLUMNS)
    while True:
        lines = table(
            [column.title for column in columns],
            [[_cell(column, row, names) for column in columns] for row in ordered],
            right=[index for index, column in enumerate(columns) if column.is_number],
        )
        droppable = [column for column in columns if column.rank]
        if max(map(len, lines)) <= width or not droppable:
            break
        columns.remove(max(droppable, key=lambda column: column.rank))
    return [*lines, "", *_summary(rows, known, tokens_per_s, width)]


def _summary(rows: list[PeerRow], known: int, tokens_per_s: float | None, width: int) -> list[str]:
    alive = sum(row.liveness in ("alive", "suspect") for row in rows)
    suspect = sum(row.liveness == "suspect" for row in rows)
    parts = [
        f"{known} known",
        f"{alive} alive" + (f" ({suspect} suspect)" if suspect else ""),
        "* this peer",
    ]
    if tokens_per_s is not None:
        parts.append(f"swarm {f.scaled(tokens_per_s)} tok/s")
    hidden = known - len(rows)
    line = " · ".join(parts) + (f"     ({len(rows)} shown; all with --all)" if hidden > 0 else "")
    return [line] if len(line) <= width else wrap(line, width, first="", follow="  ")


def _name(row: PeerRow, rows: list[PeerRow]) -> str:
    """The tails of the ids stand under each other."""
    longest = max(len(harmless(other.name or "")) for other in rows)
    star = "*" if row.self else ""
    return f"{harmless(row.name or '').ljust(longest)} ·{row.id[-4:]}{star}"


def _cell(column: _Column, row: PeerRow, names: dict[str, str]) -> str:
    if column.cell == "name":
        return names[row.id]
    return _CELLS[column.cell](row)


def _state(row: PeerRow) -> str:
    if row.liveness != "alive":
        return row.liveness or f.UNKNOWN
    if row.reason_code == "stalled":
        return "stalled"
    return "observer" if row.observer else row.state or f.UNKNOWN


def _rates(row: PeerRow) -> str:
    if row.up_bytes_per_s is None and row.down_bytes_per_s is None:
        return f.UNKNOWN
    return f"{f.mbit(row.up_bytes_per_s):>5} / {f.mbit(row.down_bytes_per_s):>5}"


def _seen(row: PeerRow) -> str:
    if row.last_seen_s is None:
        return f.UNKNOWN
    return "now" if row.last_seen_s < _NOW_S else f.duration(round(row.last_seen_s))


def _rtt(row: PeerRow) -> str:
    return f.UNKNOWN if row.rtt_ms is None else f"{row.rtt_ms:.0f} ms"


_CELLS = {
    "stage": lambda row: f.UNKNOWN if row.stage is None else str(row.stage),
    "state": _state,
    "path": lambda row: row.path or f.UNKNOWN,
    "rtt": _rtt,
    "rates": _rates,
    "speed": lambda row: f.scaled(row.tokens_per_s),
    "sent": lambda row: f.size(row.wire_bytes_sent),
    "ratio": lambda row: f.ratio(row.compression_ratio),
    "share": lambda row: f.number(row.traffic_share, 2),
    "seen": _seen,
}
_COLUMNS = (
    _Column("PEER", "name"),
    _Column("ST", "stage", is_number=True),
    _Column("STATE", "state"),
    _Column("PATH", "path", rank=2),
    _Column("RTT", "rtt", is_number=True, rank=3),
    _Column("UP / DOWN Mbit/s", "rates", is_number=True, rank=5),
    _Column("TOK/S", "speed", is_number=True),
    _Column("SENT", "sent", is_number=True, rank=6),
    _Column("RATIO", "ratio", is_number=True, rank=7),
    _Column("SHARE", "share", is_number=True, rank=4),
    _Column("SEEN", "seen", rank=1),
)
