"""Who waits for a worker that loads is told until when, and by what that is known."""

from __future__ import annotations

import pytest

from swarmd.protocols.load_pace import LOADED_WITHIN_S, LoadPace


def eta_of(pace: LoadPace, now_s: float) -> tuple[float | None, str]:
    reason = pace.reason(1, now_s)
    assert (reason.code, reason.stage) == ("state_verifying", 1)
    return reason.eta_at_s, reason.eta_basis


def test_the_first_time_it_goes_by_the_pace_at_which_the_state_came() -> None:
    pace = LoadPace()
    pace.begin(80_000_000, 10e6, now_s=100.0)
    assert eta_of(pace, 101.0) == (108.0, "measured")
    assert "80 MB" in pace.reason(1, 101.0).text


def test_later_it_goes_by_what_loading_took_before_and_by_the_size() -> None:
    pace = LoadPace()
    pace.begin(1_000, 1e9, now_s=0.0)
    pace.ended(6.0)
    pace.begin(2_000, 1e9, now_s=10.0)
    assert eta_of(pace, 11.0) == (22.0, "measured")
    pace.ended(20.0)
    pace.begin(0, None, now_s=30.0)
    assert eta_of(pace, 31.0) == (40.0, "measured")


@pytest.mark.parametrize(("size_bytes", "bytes_per_s"), [(0, None), (8_000, 1_000.0)])
def test_where_nothing_is_known_or_it_took_longer_the_deadline_is_told(
    size_bytes: int, bytes_per_s: float | None
) -> None:
    pace = LoadPace()
    pace.begin(size_bytes, bytes_per_s, now_s=100.0)
    assert eta_of(pace, 109.0) == (100.0 + LOADED_WITHIN_S, "deadline")
    assert eta_of(pace, 101.0 + LOADED_WITHIN_S) == (None, "unknown")
