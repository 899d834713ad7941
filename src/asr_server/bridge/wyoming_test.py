"""The bridge's answer to a `transcribe` event. Its connections are tested from outside."""

from wyoming.asr import Transcribe

from asr_server.api.http.fields import MAX_TEXT_CHARS
from asr_server.bridge.wyoming import Target, _options

TARGET = Target("http://127.0.0.1:8100", language="de")


def test_a_house_with_too_many_names_keeps_its_first_ones():
    """The bridge keeps as many as the server takes, in their order, names before terms: a refusal would cost every
    command."""
    names, terms = [f"lamp {number:04}" for number in range(2_000)], ["Zürich"]
    kept = _options(Transcribe(transcript_names=names, transcript_terms=terms), TARGET).hotwords
    assert kept == tuple(names[: len(kept)])
    assert MAX_TEXT_CHARS - 50 < len(", ".join(kept)) <= MAX_TEXT_CHARS
    assert _options(Transcribe(transcript_names=names[:3], transcript_terms=terms), TARGET).hotwords[-1] == "Zürich"


def test_the_language_is_that_of_the_event_or_of_the_bridge():
    """The command line is for events without one."""
    assert _options(Transcribe(language="en"), TARGET).language == "en"
    assert _options(Transcribe(), TARGET).language == "de"
