"""Prometheus text from the JSON objects: the numeric field `a.b_c` is `swarmd_a_b_c`.

One source for `swarmd metrics` and for the daemon's HTTP endpoint, so that no number is shown in
two ways. Rows of `peers` carry the labels peer and stage, rows of other lists their own key. What
is not known is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Sample = tuple[str, tuple[tuple[str, str], ...], float]

_COUNTERS = ("_total", "_count")
_ROW_LABELS = {
    "slots": ("device", "stage"),
    "stage_map": ("stage",),
    "donors": ("peer",),
    "addresses": ("addr",),
}
_LEADING = ("schema", "schema_version", "generated_at", "swarmd_version")


def metrics_text(status: Mapping[str, Any], peers: Mapping[str, Any] | None = None) -> str:
    """The whole exposition, families sorted by name."""
    samples = [*_status_samples(status), *_peer_samples(peers or {})]
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample[0], []).append(sample)
    lines = []
    for name in sorted(families):
        kind = "counter" if name.endswith(_COUNTERS) else "gauge"
        lines.append(f"# TYPE {name} {kind}")
        lines += [_line(sample) for sample in families[name]]
    return "\n".join(lines) + "\n"


def _status_samples(status: Mapping[str, Any]) -> Iterator[Sample]:
    body = {key: value for key, value in status.items() if key not in (*_LEADING, "time")}
    yield from _walk("swarmd", body)
    version = str(status.get("swarmd_version", ""))
    yield "swarmd_info", (("version", version),), 1.0
    yield "swarmd_state", (("state", str(status.get("state"))),), 1.0
    reason = status.get("reason") or {}
    yield "swarmd_reason", (("code", str(reason.get("code"))),), 1.0
    for item in (status.get("health") or {}).get("items") or []:
        labels = (("code", str(item.get("code"))), ("severity", str(item.get("severity"))))
        yield "swarmd_health_item", labels, 1.0
    times = status.get("time") or {}
    if _is_number(times.get("uptime_s")):
        yield "swarmd_time_uptime_s", (), float(times["uptime_s"])
    for code, seconds in sorted((times.get("by_reason") or {}).items()):
        yield "swarmd_seconds_total", (("reason", code),), float(seconds)


def _peer_samples(peers: Mapping[str, Any]) -> Iterator[Sample]:
    for row in peers.get("peers") or []:
        stage = row.get("stage")
        labels = (("peer", str(row.get("id"))), ("stage", "" if stage is None else str(stage)))
        rest = {key: value for key, value in row.items() if key not in ("id", "stage", "rejected")}
        for name, more, value in _walk("swarmd_peers", rest):
            yield name, labels + more, value
        for code, count in sorted((row.get("rejected") or {}).items()):
            yield "swarmd_peers_rejected", (*labels, ("code", code)), float(count)


def _walk(name: str, value: Any) -> Iterator[Sample]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in _ROW_LABELS and isinstance(inner, list):
                yield from _rows(f"{name}_{key}", inner, _ROW_LABELS[key])
            else:
                yield from _walk(f"{name}_{key}", inner)
    elif isinstance(value, bool) or _is_number(value):
        yield name, (), float(value)


def _rows(name: str, rows: list[Any], keys: tuple[str, ...]) -> Iterator[Sample]:
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        labels = tuple((key, "" if row.get(key) is None else str(row[key])) for key in keys)
        rest = {key: value for key, value in row.items() if key not in keys}
        yield from ((found, labels + more, value) for found, more, value in _walk(name, rest))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _line(sample: Sample) -> str:
    name, labels, value = sample
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    number = repr(int(value)) if value.is_integer() and abs(value) < 2**63 else repr(value)
    return f"{name}{{{shown}}} {number}" if shown else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
