"""Compressed files, columns and data sets: the same documents, and clear words for faults."""

import builtins
import gzip
import json
import os
import random
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import zstandard

from swarmd.data import text_files
from swarmd.data.documents import DataMissing, Document
from swarmd.data.sources import Source, content_hash, parse_source
from swarmd.errors import UserError


def documents(spec: str) -> list[Document]:
    return list(parse_source(spec).documents())


def named(spec: str) -> list[tuple[str, bytes]]:
    return [(document.name, document.content) for document in documents(spec)]


def write_parquet(path: Path, **columns: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(columns), path, row_group_size=2)


# ------------------------------------------------------------------------------------------- zstd


def test_zstd_reads_as_the_text_inside_however_many_frames(tmp_path):
    text = os.urandom(300_000).hex().encode()
    frames = [zstandard.compress(text[:100_000]), zstandard.compress(text[100_000:])]
    (tmp_path / "a.txt.zst").write_bytes(b"".join(frames))
    found = documents(f"text:{tmp_path}/*.zst")
    assert b"".join(document.content for document in found) == text


@pytest.mark.parametrize("size", [3, 1_000, -1])
def test_a_truncated_zstd_is_named(tmp_path, size):
    body = zstandard.compress(os.urandom(300_000))
    (tmp_path / "cut.zst").write_bytes(body[:size])
    with pytest.raises(DataMissing) as caught:
        documents(f"text:{tmp_path}/*.zst")
    assert caught.value.path == str(tmp_path / "cut.zst")


def test_an_altered_zstd_is_named(tmp_path):
    body = bytearray(zstandard.compress(b"some text " * 10_000))
    body[2] ^= 0xFF
    (tmp_path / "altered.zst").write_bytes(body)
    with pytest.raises(DataMissing, match=r"altered\.zst"):
        documents(f"text:{tmp_path}/*.zst")


def test_jsonl_in_zstd_is_read_line_by_line(tmp_path):
    lines = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(3))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    assert named(f"jsonl:{tmp_path}/*.zst#text") == [
        ("a.jsonl.zst:1", b"line 0"),
        ("a.jsonl.zst:2", b"line 1"),
        ("a.jsonl.zst:3", b"line 2"),
    ]


# ------------------------------------------------------------------------------------ long, empty


def test_a_text_line_of_200_megabytes_takes_no_more_memory_than_a_short_one(tmp_path):
    path = tmp_path / "long.txt"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(b"x" * (1 << 20))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = sum(len(document.content) for document in parse_source(f"text:{path}").documents())
    assert found == 200 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50 << 10


def test_an_object_that_is_too_long_to_be_read_whole_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LINE_BYTES_MAX", 1_000)
    lines = [json.dumps({"text": "fine"}), json.dumps({"text": "x" * 1_000})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataMissing, match=r"a\.jsonl, line 2 is longer than"):
        documents(f"jsonl:{tmp_path}/a.jsonl#text")


def test_texts_without_a_character_are_left_out_and_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": "one"}\n{"text": ""}\n')
    write_parquet(tmp_path / "a.parquet", text=["", "one", None])
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "full.txt").write_text("one")
    for spec, empty in (
        (f"jsonl:{tmp_path}/a.jsonl#text", 2),
        (f"parquet:{tmp_path}/a.parquet#text", 2),
        (f"text:{tmp_path}/*.txt", 1),
    ):
        source = parse_source(spec)
        for _ in range(2):  # a pass counts anew
            assert [document.content for document in source.documents()] == [b"one"]
            assert source.reading.empty_texts == empty


@pytest.mark.parametrize("kind", ["txt", "gz", "zst", "jsonl", "parquet"])
def test_how_far_a_pass_is_follows_from_the_sizes_of_the_files(tmp_path, kind):
    """Of two files of one size: half of it when the second begins; never less than before."""
    for name in "ab":
        text = random.Random(name).randbytes(600_000).hex()
        path = tmp_path / f"{name}.{kind}"
        rows = [text[place : place + 2_000] for place in range(0, len(text), 2_000)]
        match kind:
            case "parquet":
                write_parquet(path, text=rows)
            case "jsonl":
                path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
            case _:
                pack = {"gz": gzip.compress, "zst": zstandard.compress}.get(kind, bytes)
                path.write_bytes(pack(text.encode()))
    spec = {"jsonl": f"jsonl:{tmp_path}/*#text", "parquet": f"parquet:{tmp_path}/*#text"}
    source = parse_source(spec.get(kind, f"text:{tmp_path}/*"))
    shares = {"a": [0.0], "b": [0.0]}
    for document in source.documents():
        share = source.reading.share
        assert share is not None
        shares[document.name[0]].append(share)
    assert all(values == sorted(values) for values in shares.values())
    assert 0.3 < max(shares["a"]) <= 0.51
    assert 0.8 < max(shares["b"]) <= 1.0
    assert source.reading.share == 1.0


# ---------------------------------------------------------------------------------------- parquet


def test_parquet_takes_the_column_and_names_the_row(tmp_path):
    write_parquet(tmp_path / "b.parquet", text=["three"], id=[3])
    write_parquet(tmp_path / "a.parquet", text=["one", "", "zwei \0 ä"], id=[1, 2, 3])
    assert named(f"parquet:{tmp_path}/*.parquet#text") == [
        ("a.parquet:0", b"one"),
        ("a.parquet:2", "zwei \ufffd ä".encode()),
        ("b.parquet:0", b"three"),
    ]


def test_row_groups_and_compression_of_a_parquet_file_do_not_matter(tmp_path):
    table = arrow.table({"text": [f"text {number}" for number in range(1_000)]})
    for name, rows, packed in (("one", 7, "snappy"), ("two", 1_000, "zstd")):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "a.parquet"
        parquet.write_table(table, path, row_group_size=rows, compression=packed)
    one, two = (parse_source(f"parquet:{tmp_path}/{name}/*#text") for name in ("one", "two"))
    assert content_hash(one) == content_hash(two)


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path):
    write_parquet(tmp_path / "a.parquet", text=["one"], url=["x"])
    with pytest.raises(DataMissing, match="no column 'body'") as caught:
        documents(f"parquet:{tmp_path}/a.parquet#body")
    assert caught.value.hint == "its columns are text, url"


def test_a_column_of_numbers_is_named(tmp_path):
    write_parquet(tmp_path / "a.parquet", text=[1, 2])
    with pytest.raises(DataMissing, match="holds int64, not texts"):
        documents(f"parquet:{tmp_path}/a.parquet#text")


@pytest.mark.parametrize("size", [0, 10, -10, 2_000])
def test_a_truncated_parquet_file_is_named(tmp_path, size):
    write_parquet(tmp_path / "cut.parquet", text=[f"text {n} " * 50 for n in range(100)])
    path = tmp_path / "cut.parquet"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataMissing) as caught:
        documents(f"parquet:{tmp_path}/*.parquet#text")
    assert caught.value.path == str(path)


def test_an_altered_page_of_a_parquet_file_is_named(tmp_path):
    path = tmp_path / "altered.parquet"
    table = arrow.table({"text": [f"{row * 7919 % 1009:040x}" for row in range(1_000)]})
    parquet.write_table(table, path, compression="zstd", write_page_checksum=True)
    body = bytearray(path.read_bytes())
    body[200:400] = bytes(200)
    path.write_bytes(body)
    with pytest.raises(DataMissing) as caught:
        documents(f"parquet:{path}#text")
    assert caught.value.path == str(path)


# ------------------------------------------------------------------------------------- data sets


def data_set(folder: Path) -> Path:
    """On disk as FineWeb-Edu is: several files of a split, several columns, a `data` folder."""
    for number in range(2):
        write_parquet(
            folder / "data" / f"train-{number:05d}-of-00002.parquet",
            text=[f"text {number} {row}" for row in range(3)],
            id=[f"{number}/{row}" for row in range(3)],
            score=[2.5, 3.0, 4.5],
        )
    write_parquet(folder / "data" / "test-00000-of-00001.parquet", text=["held back"], id=["x"])
    return folder


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Nothing is asked for on the network, and nothing is kept outside of this test."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf-cache")


def test_a_data_set_is_read_as_a_stream_in_the_order_of_its_files(tmp_path, offline):
    place = data_set(tmp_path / "edu")
    expected = [(number, row) for number in range(2) for row in range(3)]
    assert [text for _, text in named(f"hf:{place}#train,text")] == [
        f"text {number} {row}".encode() for number, row in expected
    ]
    assert named(f"hf:{place}#test,text") == [("edu:0", b"held back")]
    assert named(f"hf:{place}") == named(f"hf:{place}#train,text")


def test_a_data_set_elsewhere_has_the_same_content(tmp_path, offline):
    one, other = data_set(tmp_path / "a" / "edu"), data_set(tmp_path / "b" / "edu")
    assert content_hash(parse_source(f"hf:{one}")) == content_hash(parse_source(f"hf:{other}"))


@pytest.mark.parametrize("rows", ["#train,body", "#validation,text"])
def test_a_column_or_split_that_a_data_set_lacks_is_named(tmp_path, offline, rows):
    place = data_set(tmp_path / "edu")
    with pytest.raises(DataMissing, match=r"body|validation"):
        documents(f"hf:{place}{rows}")


def test_a_data_set_that_is_not_there_is_named(tmp_path, offline):
    with pytest.raises(DataMissing, match="cannot read the data set") as caught:
        documents(f"hf:{tmp_path}/nothing")
    assert caught.value.path == f"{tmp_path}/nothing"


# ------------------------------------------------------------------------------------- what is not


@pytest.mark.parametrize(
    ("spec", "package"),
    [
        ("text:{}/a.zst", "zstandard"),
        ("parquet:{}/a.parquet#text", "pyarrow"),
        ("hf:{}/a", "datasets"),
    ],
)
def test_a_package_that_is_not_installed_is_named(tmp_path, monkeypatch, spec, package):
    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "a.zst").write_bytes(b"")
    with pytest.raises(DataMissing, match=f"needs the package {package}") as caught:
        documents(spec.format(tmp_path))
    assert "pip install -c constraints.txt -e '.[data]'" in caught.value.hint


@pytest.mark.parametrize(
    "spec", ["parquet:*.parquet", "parquet:#text", "hf:", "hf:#train", "hf:a#", "hf:a#train,"]
)
def test_a_source_that_makes_no_sense_is_a_user_error(spec):
    with pytest.raises(UserError) as caught:
        parse_source(spec)
    assert caught.value.code == "bad_config"
    assert isinstance(parse_source("hf:a:b#c,d"), Source)
