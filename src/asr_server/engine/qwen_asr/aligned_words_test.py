"""The words that the aligner times are the SDK's."""

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.errors import UnsupportedLanguage
from asr_server.engine.qwen_asr import aligned_words

pytestmark = [pytest.mark.torch, pytest.mark.nightly]  # importing the SDK takes 10 s

# Scripts whose words are divided by other rules, what is left out, and beginnings of words in the Korean list.
_WORDS = "서울에 가까스로 샌프란시스코에서 해 東京 𠀀 \uf900 O'Neill don\u2019t x1 ... ! ¿"
_TEXTS = st.lists(st.sampled_from([*_WORDS.split(), " ", "\n"]) | st.text(max_size=4), max_size=8).map("".join)


@pytest.fixture(scope="module")
def sdk():
    from tools.sdk import Qwen3ForceAlignProcessor

    return Qwen3ForceAlignProcessor()


@pytest.mark.parametrize("language", ["English", "Chinese"])
def test_words_are_the_sdks(sdk, language):

    @settings(deadline=None)
    @given(_TEXTS)
    def compare(text):
        assert aligned_words.words(text, language) == sdk.encode_timestamp(text, language)[0]

    compare()


@pytest.mark.parametrize("text", ["東京に行きます。", "今日は、良い天気ですね", "X線を 2 回", ""])
def test_japanese_words_are_the_sdks(sdk, text):
    assert aligned_words.words(text, "Japanese") == sdk.encode_timestamp(text, "Japanese")[0]


def test_korean_words_are_the_sdks(sdk, monkeypatch):
    """By its tokenizer, whose package would import scikit-learn, and its list of words."""
    spec = spec_from_file_location("tokenizer", Path(find_spec("soynlp").origin).parent / "tokenizer" / "_tokenizer.py")
    tokenizer = module_from_spec(spec)
    spec.loader.exec_module(tokenizer)
    monkeypatch.setitem(sys.modules, "soynlp.tokenizer", tokenizer)
    known = sorted(sdk.ko_score)
    for text in [
        *known,
        *(word + "에서!" for word in known),
        *map(" ".join, pairwise(known)),
        *map("".join, pairwise(known)),
    ]:
        assert aligned_words.words(text, "Korean") == sdk.encode_timestamp(text, "Korean")[0]


def test_japanese_without_its_package_names_what_repairs_it(monkeypatch):
    monkeypatch.setattr(aligned_words, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedLanguage, match=r"pip install '\.\[ja\]'"):
        aligned_words.words("東京", "Japanese")
