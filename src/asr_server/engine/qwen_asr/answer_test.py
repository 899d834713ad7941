"""Ids to text and back to places in it, against the tokenizer's own decoding of every beginning of an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from asr_server import demo
from asr_server.engine import loops
from asr_server.engine.qwen_asr import answer as answers
from asr_server.engine.qwen_asr.answer import AnswerReader, AnswerStream
from asr_server.engine.qwen_asr.tokenizer import TextTokenizer
from tools.sdk import parse_asr_output
from tools.sentences import SENTENCES

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

UNKNOWN = "\ufffd"
# Control tokens, the tag, ids without a token, and the bytes of characters: 0 to 255 in both vocabularies.
RELEASED_IDS = st.one_of(st.integers(0, 255), st.integers(0, 151_642), st.integers(151_643, 151_720))
DEMO_IDS = st.one_of(st.integers(0, 255), st.integers(0, 700))


@pytest.fixture(scope="module")
def demo_tokenizer():
    return AutoTokenizer.from_pretrained(demo.checkpoint_path())


def _ids(tokenizer, text, *, forced=False, language="English"):
    return tokenizer(("" if forced else f"language {language}<asr_text>") + text).input_ids


def _text_ids(tokenizer, ids, forced):
    tag = tokenizer.convert_tokens_to_ids("<asr_text>")
    return ids if forced or tag not in ids else ids[ids.index(tag) + 1 :]


def _offsets(tokenizer, ids, text, forced):
    """Return the offsets found by decoding every beginning of the ids."""
    decode, text_ids = tokenizer.backend_tokenizer.decode, _text_ids(tokenizer, ids, forced)
    whole = decode(text_ids).rstrip(UNKNOWN)
    if whole.strip() != text:
        return ()
    lead = len(whole) - len(whole.lstrip())
    lengths = (len(decode(text_ids[:n]).rstrip(UNKNOWN)) - lead for n in range(1, len(text_ids) + 1))
    return (*[0] * (len(ids) - len(text_ids)), *(min(max(0, length), len(text)) for length in lengths))


def _check(tokenizer, ids, forced, cuts=()):
    reader = AnswerReader(TextTokenizer(tokenizer.backend_tokenizer))
    answer = reader.read(ids, "English" if forced else None)
    assert answer.offsets == _offsets(tokenizer, ids, answer.text, forced)
    assert len(answer.pieces) == len(ids)
    stream, shown, start = AnswerStream(reader, forced=forced), "", 0
    tag, decode = tokenizer.convert_tokens_to_ids("<asr_text>"), tokenizer.backend_tokenizer.decode
    for end in sorted({*(cut for cut in cuts if cut < len(ids)), len(ids)}):
        shown += stream.feed(ids[start:end])
        begun = ids[:end] if forced or tag in ids[:end] else []
        assert shown == decode(_text_ids(tokenizer, begun, forced)).rstrip(UNKNOWN).strip()
        start = end
    return answer, shown


@given(st.data(), st.booleans())
def test_random_ids_are_read_as_the_tokenizer_decodes_them(released_tokenizer, demo_tokenizer, data, released):
    """Offsets and streamed text, whatever bytes, control tokens and tags an answer has and however it is divided."""
    tokenizer, one = (released_tokenizer, RELEASED_IDS) if released else (demo_tokenizer, DEMO_IDS)
    ids = data.draw(st.lists(one, max_size=24))
    if data.draw(st.booleans()):
        ids = [*_ids(tokenizer, ""), *ids]
    _check(tokenizer, ids, data.draw(st.booleans()), data.draw(st.sets(st.integers(1, 30))))


@pytest.mark.parametrize("language", SENTENCES)
@pytest.mark.parametrize("forced", [False, True])
def test_a_sentence_of_every_language_comes_back(released_tokenizer, language, forced):
    """Language, text, bytes and places are those of the sentence; streamed, it never shows half a character."""
    sentence = SENTENCES[language]
    ids = _ids(released_tokenizer, sentence, forced=forced, language=language)
    answer, shown = _check(released_tokenizer, ids, forced, range(len(ids)))
    read = AnswerReader(TextTokenizer(released_tokenizer.backend_tokenizer)).read(ids, language if forced else None)
    assert (read.language, read.text, shown) == (language, sentence, sentence)
    assert b"".join(answer.pieces).decode() == sentence
    assert answer.offsets[-1] == len(sentence)
    for end in range(len(ids)):
        assert b"".join(answer.pieces[:end]).decode(errors="ignore") == sentence[: ([0, *answer.offsets])[end]]


def test_text_that_was_cleaned_up_has_no_offsets(demo_tokenizer):
    """Ids no longer map to places in the text where a loop was folded."""
    reader = AnswerReader(TextTokenizer(demo_tokenizer.backend_tokenizer))
    answer = reader.read(_ids(demo_tokenizer, "no " * 30), None)
    assert answer.language == "English"
    assert len(answer.text) < 10
    assert answer.offsets == ()


_ANSWERS = st.tuples(
    st.sampled_from(
        ["", " ", "language English", "language None", "language english\n", "language", "x\nlanguage Greek"]
    ),
    st.sampled_from(["", "<asr_text>", "<asr_text><asr_text>"]),
    st.text(max_size=20),
    st.text(min_size=1, max_size=24),
    st.integers(0, 25),
    st.sampled_from(["", " ", "\n "]),
)


@given(_ANSWERS, st.sampled_from([None, "", "German"]))
def test_answers_are_parsed_as_the_sdk_parses_them(answer, language):
    named, tag, text, unit, times, between = answer
    raw = f"{named}{tag}{text}{between.join([unit] * times)}"
    found, expected = parse_asr_output(raw, user_language=language)
    assert answers.parsed(raw, language) == (found, loops.collapse(expected))
