"""Answers of servers, whole and in pieces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.features.remote_engine.answer import Answer, AnswerRefused, added

DONE = b"[DONE]"


def _chunk(content, **choice):
    return {"choices": [{"delta": {"content": content}, **choice}]}


def _read(*events):
    answer = Answer()
    for event in events:
        answer = added(answer, event if event is DONE else json.dumps(event).encode())
    return answer


@pytest.mark.parametrize(
    ("body", "text", "language"),
    [
        ({"text": "turn on"}, "turn on", ""),
        ({"text": " turn on\n", "language": "english"}, "turn on", "English"),
        ({"text": "einschalten", "languages": [{"code": "de"}], "language": "auto"}, "einschalten", "German"),
        ({"text": "x", "language": "tlh"}, "x", ""),
        # vLLM 0.14 leaves the marks of Qwen3-ASR in the text.
        ({"text": "language Chinese<asr_text>打开"}, "打开", "Chinese"),
        ({"text": "language None<asr_text>"}, "", ""),
        ({"text": "language is a tool"}, "language is a tool", ""),
    ],
)
def test_a_whole_answer_has_the_text_and_the_language(body, text, language):
    answer = _read(body)
    assert (answer.read(), answer.is_whole) == ((language, text), True)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["", "language English<asr_text>", "language "]), st.text(max_size=90), st.data())
def test_streamed_text_only_grows(head, text, data):
    written, answer, shown = head + text, Answer(), ""
    while written:
        size = data.draw(st.integers(1, 12))
        answer = added(answer, json.dumps(_chunk(written[:size])).encode())
        written = written[size:]
        assert answer.read()[1].startswith(shown)
        shown = answer.read()[1]
    answer = added(answer, DONE)
    assert answer.read()[1].startswith(shown)
    assert answer.read()[1] == _read({"text": head + text}).read()[1]


def test_events_of_openai_bring_language_and_usage():
    """The last event brings them; its text counts where nothing was streamed."""
    usage = {"type": "tokens", "input_token_details": {"text_tokens": 9, "audio_tokens": 120}}
    done = {"type": "transcript.text.done", "text": "turn on", "languages": [{"code": "en"}], "usage": usage}
    for deltas in ([{"type": "transcript.text.delta", "delta": "turn"}], []):
        answer = _read(*deltas, done)
        assert answer.read() == ("English", "turn" if deltas else "turn on")
        assert (answer.prompt_tokens, answer.audio_tokens) == (9, 120)
        assert answer.is_whole


@pytest.mark.parametrize("event", [{"error": {"message": "x"}}, {"error": "x"}, {"type": "error"}])
def test_an_error_in_the_stream_is_one(event):
    with pytest.raises(AnswerRefused):
        _read(_chunk("turn"), event)


def test_that_an_answer_was_cut_stays_true_whatever_follows():
    """Some servers send a last chunk with an empty choice after the one that says so."""
    usage = {"choices": [], "usage": {"prompt_tokens": 40}}
    answer = _read(_chunk("turn", finish_reason="length"), _chunk(""), _chunk("", finish_reason=None), usage, DONE)
    assert (answer.raw, answer.is_cut, answer.is_whole, answer.prompt_tokens) == ("turn", True, True, 40)
    assert not _read(_chunk("turn"), _chunk("", finish_reason="stop")).is_cut
    two = {"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}, {"delta": {"content": "b"}}]}
    assert _read(two).is_cut
