"""The encoder's runtime, and the tokenizer."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.features.moonshine import package
from asr_server.features.moonshine.model import Tokenizer


@pytest.mark.slow("starts a process that loads the model")
def test_the_runtime_reports_nothing_to_its_maker(tmp_path):
    """The runtime would keep reports below the home directory. After a run there are none."""
    code = (
        "import numpy; from asr_server.features.moonshine import aligner, model, package;"
        "model.MoonshineModel(package.locate()).encode(numpy.zeros(16_000, 'f4'), 8)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, timeout=60)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(package.locate().tokenizer)


def test_a_character_of_several_tokens_is_whole_or_not_there(tokenizer):
    """`é` of two byte tokens: nothing after the first one, and both stand for it together."""
    first, second = (3 + byte for byte in "é".encode())
    assert tokenizer.read([first]).text == ""
    reading = tokenizer.read([first, second])
    assert (reading.text, reading.offsets, reading.pieces) == ("é", (0, 1), (b"\xc3", b"\xa9"))


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\u2581"), min_size=1)))
def test_any_text_is_encoded(tokenizer, words):
    assert tokenizer.read(tokenizer.encode(" ".join(words))).text == " ".join(words)


@given(st.lists(st.integers(0, 32_767), max_size=30))
def test_pieces_offsets_and_text_agree(tokenizer, ids):
    """Any ids have no blank at either end, offsets in order up to the length, and pieces that are the text."""
    reading = tokenizer.read(ids)
    assert len(reading.offsets) == len(reading.pieces) == len(ids)
    assert list(reading.offsets) == sorted(reading.offsets)
    assert not ids or reading.offsets[-1] == len(reading.text)
    assert reading.text == reading.text.strip(" \t\n\r\v\f")
    whole = b"".join(reading.pieces).decode(errors="ignore").rstrip(" \t\n\r\v\f")
    assert whole == reading.text.replace("\ufffd", "").rstrip(" \t\n\r\v\f")
