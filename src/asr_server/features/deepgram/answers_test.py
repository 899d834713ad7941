"""Answers in Deepgram's form."""

from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.features.deepgram import answers

META = answers.metadata("req_1", "demo")


def _word(text, at_ms, speaker=None, confidence=0.5):
    return Word(text, at_ms, at_ms + 100, TimeSource.ALIGNED, confidence, speaker)


def _segment(*words, speaker=None):
    text = " ".join(word.text for word in words)
    return Segment(words[0].start_ms, words[-1].end_ms, text, "English", (), 0.0, 0.0, words=words, speaker=speaker)


def test_speakers_are_numbers_in_the_order_in_which_they_begin():
    """Whatever they are called; the same in the list of utterances."""
    segments = (_segment(_word("Hi!", 0, "Ann"), speaker="Ann"), _segment(_word("Yes,", 200, "A"), speaker="A"))
    transcript = Transcript("Hi! Yes,", "English", 1_000, segments)
    found = answers.recording(transcript, META, utterances=True, names_language=True)["results"]
    words = found["channels"][0]["alternatives"][0]["words"]
    assert [(word["word"], word["punctuated_word"], word["speaker"]) for word in words] == [
        ("hi", "Hi!", 0),
        ("yes", "Yes,", 1),
    ]
    assert [utterance["speaker"] for utterance in found["utterances"]] == [0, 1]
    assert found["channels"][0]["detected_language"] == "en"
