"""Sources: the same documents everywhere, and clear words when they are not there."""

import gzip
import json
import os
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.data.documents import DOCUMENT_BYTES_MAX, DataMissing, Document
from swarmd.data.sources import content_hash, parse_source
from swarmd.errors import UserError


def documents(spec: str) -> list[Document]:
    return list(parse_source(spec).documents())


def contents(spec: str) -> list[bytes]:
    return [document.content for document in documents(spec)]


def test_builtin_python_gives_the_interpreters_own_library_in_order():
    names = [document.name for document in documents("builtin:python")]
    assert "abc.py" in names
    assert "json/decoder.py" in names
    whole_files = [name for name in names if "#" not in name]
    assert whole_files == sorted(set(whole_files))
    folders = {part for name in names for part in Path(name).parts[:-1]}
    assert not folders & {"site-packages", "test", "tests", "idle_test", "__pycache__"}
    assert not [name for name in names if Path(name).name.startswith("_sysconfigdata")]


def test_builtin_python_is_read_from_the_standard_library():
    text = (Path(sysconfig.get_paths()["stdlib"]) / "abc.py").read_bytes()
    by_name = {document.name: document.content for document in documents("builtin:python")}
    assert by_name["abc.py"] == text


def test_text_names_are_relative_so_a_copy_elsewhere_has_the_same_hash(tmp_path):
    for folder in ("here", "there/deeper"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "b.txt").write_text("two")
        (tmp_path / folder / "a.txt").write_text("one")
    one, other = (f"text:{tmp_path / folder}/**/*.txt" for folder in ("here", "there/deeper"))
    assert [document.name for document in documents(one)] == ["a.txt", "sub/b.txt"]
    assert content_hash(parse_source(one)) == content_hash(parse_source(other))


def test_content_hash_changes_with_a_byte_a_name_or_a_file(tmp_path):
    def hash_of(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.txt").write_text(text)
        return content_hash(parse_source(f"text:{folder}/*.txt"))

    original = hash_of(a="one", b="two")
    assert hash_of(a="one", b="two") == original
    changed = {hash_of(a="one", b="twO"), hash_of(a="one", c="two"), hash_of(a="one")}
    moved = {hash_of(a="onet", b="wo"), hash_of(ab="one", b="two")}
    assert original not in changed | moved
    assert len(changed | moved) == 5


def test_gzip_reads_as_the_text_inside(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("häßlich\n".encode()))
    assert contents(f"text:{tmp_path}/*.gz") == ["häßlich\n".encode()]


def test_bad_utf8_zero_bytes_and_the_byte_order_mark_are_normalised(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfab\xff\xc3(\0z\xe2\x82")
    expected = "ab\ufffd\ufffd(\ufffdz\ufffd".encode()
    assert contents(f"text:{tmp_path}/a.txt") == [expected]


def test_empty_files_give_no_document(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "c.txt").write_bytes(b"c")
    assert [document.name for document in documents(f"text:{tmp_path}/*.txt")] == ["c.txt"]


def test_long_texts_are_cut_after_a_line_and_nothing_is_lost(tmp_path):
    text = "".join(f"line {number}\n" for number in range(20_000)).encode()
    (tmp_path / "long.txt").write_bytes(text)
    pieces = documents(f"text:{tmp_path}/long.txt")
    assert b"".join(piece.content for piece in pieces) == text
    assert [piece.name for piece in pieces[:3]] == ["long.txt", "long.txt#1", "long.txt#2"]
    assert all(len(piece.content) <= DOCUMENT_BYTES_MAX for piece in pieces)
    assert all(piece.content.endswith(b"\n") for piece in pieces)


@settings(max_examples=30, deadline=None)
@given(character=st.sampled_from("a\u00e9\u20ac\U0001f600"), shift=st.integers(0, 5))
def test_a_text_of_one_line_is_cut_between_characters(tmp_path_factory, character, shift):
    path = tmp_path_factory.mktemp("line") / "a.txt"
    text = ("x" * shift + character * DOCUMENT_BYTES_MAX).encode()
    path.write_bytes(text)
    pieces = contents(f"text:{path}")
    assert b"".join(pieces) == text
    for piece in pieces:
        piece.decode()  # raises if a character was cut in two


def test_jsonl_takes_the_field_and_names_the_line(tmp_path):
    lines = [json.dumps({"text": "one", "id": 1}), "", json.dumps({"text": "two"})]
    lines.append(json.dumps({"text": None}))
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    found = documents(f"jsonl:{tmp_path}/*.jsonl#text")
    assert [(document.name, document.content) for document in found] == [
        ("a.jsonl:1", b"one"),
        ("a.jsonl:3", b"two"),
    ]


@pytest.mark.parametrize(
    "line", ["{", '"text"', "null", '["text"]', '{"other": "x"}', '{"text": 3}']
)
def test_a_jsonl_line_without_the_text_is_named(tmp_path, line):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataMissing) as caught:
        documents(f"jsonl:{tmp_path}/a.jsonl#text")
    assert "a.jsonl, line 2" in str(caught.value)


def test_numbers_that_json_does_not_know_beside_the_text_are_borne(tmp_path):
    """Python writes them, and only the text is used."""
    (tmp_path / "a.jsonl").write_text('{"text": "fine", "loss": NaN, "most": -Infinity}\n')
    assert contents(f"jsonl:{tmp_path}/a.jsonl#text") == [b"fine"]


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("9" * 10_000, "has a number of too many digits"),
        ("[" * 100_000 + "]" * 100_000, "is nested too deeply"),
    ],
)
def test_json_that_is_too_much_is_not_called_something_else(tmp_path, rest, says):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine", "other": {rest}}}\n')
    with pytest.raises(DataMissing, match=f"line 1 {says}"):
        documents(f"jsonl:{tmp_path}/a.jsonl#text")


def test_a_link_that_leads_nowhere_is_named_and_not_passed_over(tmp_path):
    (tmp_path / "here.txt").write_text("here")
    (tmp_path / "lost.txt").symlink_to(tmp_path / "not" / "here")
    with pytest.raises(DataMissing, match=r"lost\.txt is a link that leads nowhere"):
        documents(f"text:{tmp_path}/*.txt")


def test_a_pattern_without_a_match_is_named(tmp_path):
    with pytest.raises(DataMissing) as caught:
        documents(f"text:{tmp_path}/*.md")
    assert caught.value.code == "data_missing"
    assert caught.value.exit_code == 78
    assert "*.md" in str(caught.value)
    assert caught.value.hint


def test_a_link_that_leads_back_up_is_gone_through_once(tmp_path):
    inner = tmp_path / "texts" / "inner"
    inner.mkdir(parents=True)
    (inner / "a.txt").write_text("one")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "b.txt").write_text("two")
    for name, goal in (("self", "."), ("up", ".."), ("out", "../../outside")):
        (inner / name).symlink_to(goal)
    names = [document.name for document in documents(f"text:{tmp_path}/texts/**/*.txt")]
    assert names == ["inner/a.txt", "inner/out/b.txt"]
    assert names == [document.name for document in documents(f"text:{tmp_path}/texts/**")]


def test_several_stars_find_what_one_would(tmp_path):
    for name in ("a/x/b/y/c.txt", "a/b/c.txt", "b/c.txt", ".hidden/b/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    names = [document.name for document in documents(f"text:{tmp_path}/**/b/**/c.txt")]
    assert names == ["a/b/c.txt", "a/x/b/y/c.txt", "b/c.txt"]


def test_a_pipe_as_a_source_is_called_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataMissing) as caught:
        documents(f"text:{tmp_path}/pipe")
    assert "is a pipe" in caught.value.hint


@pytest.mark.parametrize("size", [5, 40, -5])
def test_a_truncated_gzip_is_named(tmp_path, size):
    body = gzip.compress(b"some text that is long enough" * 200)
    (tmp_path / "cut.gz").write_bytes(body[:size])
    with pytest.raises(DataMissing) as caught:
        documents(f"text:{tmp_path}/*.gz")
    assert caught.value.path == str(tmp_path / "cut.gz")


def test_an_altered_gzip_is_named(tmp_path):
    body = bytearray(gzip.compress(b"some text that is long enough" * 200))
    body[-8] ^= 1  # its checksum
    (tmp_path / "altered.gz").write_bytes(body)
    with pytest.raises(DataMissing) as caught:
        documents(f"text:{tmp_path}/*.gz")
    assert caught.value.path == str(tmp_path / "altered.gz")


@pytest.mark.parametrize(
    "spec",
    ["", "python", "builtin:c", "builtin:python:0", "builtin:python:x", "text:", "jsonl:a#", "x:y"],
)
def test_a_source_that_makes_no_sense_is_a_user_error(spec):
    with pytest.raises(UserError) as caught:
        parse_source(spec)
    assert caught.value.code == "bad_config"
    assert caught.value.exit_code == 78
    assert caught.value.hint
