"""A folder that is made whole or not at all, by whoever comes first."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from swarmd.errors import StoreError, UserError
from swarmd.new_folder import check_is_free, new_folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_appears_with_all_that_is_in_it(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with new_folder(target) as made:
        (made / "weights").write_text("w")
        assert not target.exists()
    assert names_in(target) == ["weights"]
    assert target.stat().st_mode & 0o777 == 0o755
    assert names_in(target.parent) == ["model"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyError), new_folder(tmp_path / "model") as made:
        (made / "weights").write_text("w")
        raise KeyError
    assert names_in(tmp_path) == []


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with new_folder(tmp_path / "model") as made:
        (made / "weights").write_text("w")
    assert names_in(tmp_path / "model") == ["weights"]


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("file", "full", "gone", "file/below"):
        with pytest.raises(UserError) as refused:
            check_is_free(tmp_path / name)
        assert (refused.value.code, refused.value.exit_code) == ("usage", 2)
    assert names_in(tmp_path) == ["file", "full", "gone"]


def test_what_came_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    late = tmp_path / "late"
    filling = new_folder(late)
    (filling.__enter__() / "weights").write_text("w")
    late.mkdir()
    (late / "note").write_text("of somebody who was quicker")
    with pytest.raises(UserError, match="there already"):
        filling.__exit__(None, None, None)
    assert names_in(tmp_path) == ["late"]
    assert names_in(late) == ["note"]


def test_of_two_at_once_the_second_is_told_and_the_first_is_left_alone(tmp_path: Path) -> None:
    with new_folder(tmp_path / "model") as made:
        (made / "weights").write_text("of the first")
        with pytest.raises(UserError) as refused, new_folder(tmp_path / "model"):
            pass
        assert (refused.value.code, refused.value.exit_code) == ("busy", 75)
    assert (tmp_path / "model" / "weights").read_text() == "of the first"


def test_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    left = tmp_path / ".model.part"
    (left / "below").mkdir(parents=True)
    (left / "half a weight").write_text("w")
    with new_folder(tmp_path / "model") as made:
        (made / "weights").write_text("w")
    assert names_in(tmp_path / "model") == ["weights"]
    assert names_in(tmp_path) == ["model"]


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    target = tmp_path / ("x" * 300)
    with pytest.raises(StoreError, match="x: File name too long"), new_folder(target):
        pass
