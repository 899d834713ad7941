"""Answers in Deepgram's form."""

from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.features.deepgram import answers


def _segment(text, at_ms, speaker):
    word = Word(text, at_ms, at_ms + 100, TimeSource.ALIGNED, 0.5, speaker)
    return Segment(at_ms, at_ms + 100, text, "English", (), 0.0, 0.0, words=(word,), speaker=speaker)


def test_speakers_are_numbers_in_the_order_in_which_they_begin():
    """Whatever they are called; the same in the list of utterances."""
    segments = (_segment("Hi!", 0, "Ann"), _segment("Yes,", 200, "A"))
    transcript, meta = Transcript("Hi! Yes,", "English", 1_000, segments), answers.metadata("req_1", "demo")
    found = answers.recording(transcript, meta, utterances=True, names_language=True)["results"]
    words = found["channels"][0]["alternatives"][0]["words"]
    spoken = [(word["word"], word["punctuated_word"], word["speaker"]) for word in words]
    assert spoken == [("hi", "Hi!", 0), ("yes", "Yes,", 1)]
    assert [utterance["speaker"] for utterance in found["utterances"]] == [0, 1]
    assert found["channels"][0]["detected_language"] == "en"
