"""Ids to text and back to places in it."""

import pytest
from transformers import AutoTokenizer

from asr_server import demo
from asr_server.engine.qwen import prompt

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(demo.checkpoint_path())


@pytest.mark.parametrize("text", ["turn on the lights", "打开电灯", "naïve 😀 end", ""])
@pytest.mark.parametrize("forced", [False, True])
def test_offsets_end_where_characters_end(tokenizer, text, forced):
    """Characters of several bytes count with their last byte; the language words count nothing."""
    ids = tokenizer(("" if forced else "language English<asr_text>") + text).input_ids
    found = prompt.offsets(tokenizer, ids, text, forced=forced)
    assert len(found) == len(ids)
    assert not found or found[-1] == len(text)
    spoken = ids[len(ids) - sum(1 for o in found if o) :]
    assert tokenizer.decode(spoken).endswith(text[-1:])
    assert list(found) == sorted(found)


def test_text_that_was_cleaned_up_has_no_offsets(tokenizer):
    """Where a loop was folded, ids no longer map to places in the text."""
    ids = tokenizer("language English<asr_text>" + "no " * 30).input_ids
    answer = prompt.read(tokenizer, ids, None)
    assert answer.language == "English"
    assert len(answer.text) < 10
    assert answer.offsets == ()


@pytest.mark.parametrize("text", ["turn on the lights", "打开电灯", "naïve 😀 end", ""])
def test_pieces_are_the_bytes_of_the_text(tokenizer, text):
    """What the ids write, joined, is the text in UTF-8; the language words write nothing."""
    ids = tokenizer(f"language English<asr_text>{text}").input_ids
    found = prompt.pieces(tokenizer, ids, forced=False)
    assert len(found) == len(ids)
    assert b"".join(found).decode() == text


def test_ids_without_a_token_write_nothing(tokenizer):
    """The released vocabularies are padded past their tokenizers; such an id is no error."""
    ids = [*tokenizer("language English<asr_text>turn").input_ids, 151_900]
    answer = prompt.read(tokenizer, ids, None)
    assert answer.text == "turn"
    assert answer.pieces[-1] == b""
