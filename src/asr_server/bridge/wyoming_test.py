"""What the bridge makes of a `transcribe` event. Its connections are tested from outside."""

from wyoming.asr import Transcribe

from asr_server.api.http.fields import MAX_TEXT_CHARS
from asr_server.bridge.wyoming import Target, _wish

TARGET = Target("http://127.0.0.1:8100", language="de")


def test_a_house_with_too_many_names_keeps_its_first_ones():
    """As many as the server takes, in their order, names before terms: a refusal would cost every command."""
    names, terms = [f"lamp {number:04}" for number in range(2_000)], ["Zürich"]
    kept = _wish(Transcribe(transcript_names=names, transcript_terms=terms), TARGET).hotwords
    assert kept == tuple(names[: len(kept)])
    assert MAX_TEXT_CHARS - 50 < len(", ".join(kept)) <= MAX_TEXT_CHARS
    assert _wish(Transcribe(transcript_names=names[:3], transcript_terms=terms), TARGET).hotwords[-1] == "Zürich"


def test_the_language_is_the_callers_or_else_that_of_the_bridge():
    """An event that names none leaves it to the command line."""
    assert _wish(Transcribe(language="en"), TARGET).language == "en"
    assert _wish(Transcribe(), TARGET).language == "de"
