"""Cutting texts at spaces gives the ids of the whole text, or is not done."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from swarmd.data import word_cache
from swarmd.data.tokeniser import JsonTokeniser
from swarmd.data.word_cache import GPT2, RULES, WHITE, WordCache, ascii_rule

TEXTS = [
    "The cat's dog isn't here.  I'LL say: 12345 and 678, don't you?\n\n\tfor x in range(10):\n",
    "    return self.x\n        if y:\n  \n z \u00a0 w\u2003 v\r\n\r\n  a'sb 's\x85 \x1c q",
    "Привет мир, как дела? 日本語 テキスト naïve café e\u0301 ½ ²  \u3000 end!\n? ...\n--\n",
] * 3
SPACES = [" ", " ", "  ", "\n", "\r", "\t", "\x0b", "\x1c", "\x85", "\u00a0", "\u2003", "\u2028"]
WORDS = ["'", "'s", "'LL", "a", "Foo", "bar9", "12", "7", "é", "e\u0301", "日", "²", "_", ".", "!"]
ODD = ["--", "🙂", "\0", "\ue000", "\ud7ff", "\u200b", "Рах", "antidisestablishment"]
PIECES = st.sampled_from(SPACES + WORDS + ODD)
ANY_TEXT = st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=30)


def body_of(rule: str | None, **changes: object) -> bytes:
    """A vocabulary of its own, cut by a rule; None: as ByteLevel does by itself."""
    made = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule is None)
    made.pre_tokenizer = to_bytes
    if rule is not None:
        split = pre_tokenizers.Split(Regex(rule), behavior="isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return json.dumps({**json.loads(made.to_str()), **changes}).encode()


@pytest.fixture(scope="module", params=[None, *RULES], ids=["bytes", "gpt2", "llama3", "qwen2"])
def pair(request) -> tuple[JsonTokeniser, JsonTokeniser]:
    """The same tokeniser twice: one that cuts, one that does not."""
    body = body_of(request.param)
    cutting, whole = JsonTokeniser(body, "here"), JsonTokeniser(body, "here")
    assert cutting._words is not None
    whole._words = None
    return cutting, whole


@settings(max_examples=150, deadline=None)
@example(["a  b", " a", "a ", "", " ", "foo\n bar", "foo.\n\n bar", "1\n2 3", "x\0 y\0\n"])
@example(["12345678 1234567890123456", "а б\n b", "don't  'S 'll\u00a0 x"])
@given(texts=st.lists(ANY_TEXT, max_size=4))
def test_every_text_has_the_ids_that_it_has_whole(pair, texts):
    cutting, whole = pair
    bodies = [text.encode() for text in texts]
    for _ in range(2):  # unknown pieces, then remembered ones
        pairs = zip(cutting.encode(bodies), whole.encode(bodies), strict=True)
        assert all(ours.tolist() == theirs.tolist() for ours, theirs in pairs)


def test_what_is_remembered_has_a_bound_and_changes_nothing(pair, monkeypatch):
    cutting, whole = pair
    monkeypatch.setattr(word_cache, "REMEMBERED_MAX", 10)
    for number in range(30):
        text = f"{TEXTS[number % 3]} word{number}".encode()
        assert cutting.encode([text])[0].tolist() == whole.encode([text])[0].tolist()
        assert cutting._words.size <= 10


def test_a_word_is_encoded_once():
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[len(text)] for text in texts]

    rule = ascii_rule(body_of(None))
    assert rule is not None
    cache = WordCache(encode, np.uint16, rule)
    texts = ["one two, one", " two  three", "one,", "naïve café"]
    found = cache.encode([text.encode() for text in texts])
    expected = [[3, 4, 1, 4], [4, 1, 6], [3, 1], [5, 5]]
    assert [ids.tolist() for ids in found] == expected
    assert sorted(asked) == [" ", " café", " one", " three", " two", ",", "naïve", "one"]


def test_every_kind_of_white_space_is_known():
    assert set(WHITE) == {chr(code) for code in range(0x110000) if chr(code).isspace()}


def test_a_file_that_does_more_than_cut_and_merge_is_used_as_it_is():
    assert ascii_rule(body_of(None)) == ascii_rule(body_of(GPT2)) is not None
    plain = json.loads(body_of(None))
    lower = json.loads(normalizers.Lowercase().__getstate__())
    prefix = json.loads(pre_tokenizers.ByteLevel(add_prefix_space=True).__getstate__())
    words = [{**plain["added_tokens"][0], "special": False}]
    for changes in (
        {"normalizer": lower},
        {"pre_tokenizer": prefix},
        {"pre_tokenizer": None},
        {"added_tokens": words},
        {"model": {**plain["model"], "dropout": 0.1}},
        {"model": {**plain["model"], "type": "WordPiece"}},
    ):
        assert ascii_rule(json.dumps({**plain, **changes}).encode()) is None
    assert ascii_rule(body_of(r"\w+|\s+")) is None
