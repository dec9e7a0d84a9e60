"""Errors in TOML name file and line; one value can be changed and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.errors import UserError
from swarmd.toml_file import line_of, literal, parse_toml, read_toml, render_toml, set_value

TEXT = '''# a comment with [brackets] and key = value
[run]
name = "x"  # why
"quoted" = 1
data = """
not_a_key = 1
[not_a_section]
"""
ranges = [
  [0, 1],
  [2, 3],
]
protocol = { min = 1, max = 2 }

[ model ]  # sizes
width = 8
a.b = 3
hash = "# no comment ['"
after = 1
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("run", 2),
        ("run.name", 3),
        ("run.quoted", 4),
        ("run.data", 5),
        ("run.not_a_key", None),
        ("not_a_section", None),
        ("run.ranges", 9),
        ("run.protocol", 13),
        ("run.protocol.max", 13),
        ("model", 15),
        ("model.width", 16),
        ("model.a.b", 17),
        ("model.after", 19),
        ("name", None),
    ],
)
def test_line_of_a_key_is_found(key: str, line: int | None) -> None:
    tomllib.loads(TEXT)
    assert line_of(TEXT, key) == line


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"[run]\nname = \n", "x.toml:2"),
        (b"[run\n", "x.toml:1"),
        (b'a = "', "x.toml:1"),
        (b"a = 1\n\xff = 2\n", "x.toml:2"),
        (b"a = 1\na = 2\n", "x.toml:2"),
    ],
)
def test_broken_syntax_names_file_and_line(body: bytes, where: str) -> None:
    with pytest.raises(UserError, match=where) as caught:
        parse_toml(Path("x.toml"), body)
    assert (caught.value.exit_code, caught.value.code) == (78, "bad_config")


def test_absent_file_is_none_and_a_directory_is_bad(tmp_path: Path) -> None:
    assert read_toml(tmp_path / "none.toml") is None
    with pytest.raises(UserError, match="directory"):
        read_toml(tmp_path)


def test_changing_a_value_changes_nothing_else() -> None:
    changed = set_value(TEXT, "run", "name", '"y"')
    assert tomllib.loads(changed)["run"]["name"] == "y"
    assert changed == TEXT.replace('name = "x"  # why', 'name = "y"  # why')


def test_new_value_goes_into_its_section_which_is_made_if_need_be() -> None:
    assert tomllib.loads(set_value(TEXT, "model", "depth", "3"))["model"]["depth"] == 3
    assert tomllib.loads(set_value(TEXT, "net", "port", "1"))["net"] == {"port": 1}
    assert set_value("", "net", "port", "1") == "[net]\nport = 1\n"


def test_value_of_several_lines_is_not_cut_in_half() -> None:
    with pytest.raises(ValueError, match="line 9"):
        set_value(TEXT, "run", "ranges", "[]")


values = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from("abcd"), values, max_size=4))
def test_what_is_rendered_reads_back(section: dict[str, object]) -> None:
    expected = {"s": section} if section else {}
    assert tomllib.loads(render_toml({"s": section})) == expected


def test_inline_table_reads_back() -> None:
    assert tomllib.loads("a = " + literal({"min": 1, "max": 2})) == {"a": {"min": 1, "max": 2}}


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbf[run]\nname = 1\n")
    found = read_toml(file)
    assert found is not None
    assert found.values == {"run": {"name": 1}}
