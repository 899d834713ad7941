"""Language names and codes."""

import pytest

from asr_server.core.errors import InvalidLanguage, UnsupportedLanguage
from asr_server.text import languages


def test_every_spelling_of_a_language_is_that_language():
    """The language's name in any case, its code, and its code with a region mean the same."""
    for name in languages.model_languages():
        code = languages.code(name)
        for spelling in (name, name.lower(), name.upper(), code, code.upper(), f" {code}-XX "):
            assert languages.normalize(spelling) == name, name


def test_nothing_means_detection():
    """Absent, empty and `auto` leave the choice to the model."""
    for nothing in [None, "", "  ", "auto", "AUTO"]:
        assert languages.normalize(nothing) is None, nothing


def test_a_real_language_that_the_model_lacks_is_unsupported():
    """The error says that the language is the problem, not its spelling."""
    for value in ("is", "sw", "Icelandic", "is-IS"):
        with pytest.raises(UnsupportedLanguage):
            languages.normalize(value)


def test_what_is_no_language_is_malformed():
    """Anything without the shape of a code or name is refused before it reaches a prompt."""
    for value in ["e", "12", "english; drop table", "<|im_end|>", "x" * 500, "語"]:
        with pytest.raises(InvalidLanguage):
            languages.normalize(value)


def test_hong_kong_chinese_is_cantonese():
    """`zh-HK` names a place where the model's Cantonese is spoken."""
    assert languages.normalize("zh-HK") == languages.normalize("zh-Hant-HK") == "Cantonese"
    assert languages.normalize("zh-TW") == "Chinese"


@pytest.mark.torch
def test_the_names_are_those_of_the_sdk():
    """The table and the model's package know the same languages."""
    from qwen_asr.inference.utils import SUPPORTED_LANGUAGES

    assert set(languages.model_languages()) == set(SUPPORTED_LANGUAGES)
