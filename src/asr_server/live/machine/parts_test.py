"""An utterance with a long pause is transcribed in parts, and its caller sees one utterance."""

import weakref

import numpy as np
import pytest

from asr_server.core.audio import SAMPLE_RATE
from asr_server.live.machine.conftest import begun, silence, speech
from asr_server.live.machine.events import (
    Ending,
    Final,
    Flush,
    Interrupted,
    Partial,
    SessionError,
    TurnConfig,
    UtteranceEnded,
    UtteranceStarted,
)

MANUAL = TurnConfig(manual=True, prefix_ms=0)
PATIENT = TurnConfig(min_silence_ms=6_000)
HOLE = silence(3_000)
FIRST, SECOND = speech([1, 2, 3]), speech([4, 5])


def test_nothing_is_kept_of_the_audio_of_an_utterance_that_has_its_final():
    """Although no frame comes after it: a session may wait for a client who has left."""
    run = begun(rules=TurnConfig())
    run.say(FIRST)
    run.feed(Flush())
    assert run.of(Final)
    audio = weakref.ref(run.requests[-1].audio.base)
    run.actions, run.requests, run.audio_of = [], [], {}
    assert audio() is None


@pytest.mark.parametrize("rules", [MANUAL, PATIENT])
def test_an_utterance_with_a_long_pause_is_one_and_has_all_its_words_once(rules):
    """No request has the pause, or the silence around. The final has both parts, and the language of the first."""
    run = begun(rules=rules)
    run.say(HOLE, FIRST, HOLE)
    run.languages = ("German",)
    run.say(SECOND, HOLE)
    run.feed(Flush())
    (final,) = run.of(Final)
    assert (final.text, final.language, final.ending) == ("one two three four five", "English", Ending.FLUSH)
    assert [part.text for part in final.parts] == ["one two three", "four five"]
    assert final.start_samples > len(HOLE) - SAMPLE_RATE / 2
    assert final.end_samples < run.session.clock_samples - len(HOLE) + SAMPLE_RATE / 2
    assert final.parts[1].start_samples - final.parts[0].end_samples > 2 * SAMPLE_RATE
    assert max(len(request.audio) for request in run.requests) < len(FIRST) + SAMPLE_RATE
    assert len(run.of(UtteranceStarted)) == len(run.of(UtteranceEnded)) == 1


def test_a_pause_ends_the_utterance_when_it_is_as_long_as_the_rules_say():
    """Counted from the speech, however the parts lie: one final, 6 s after it."""
    run = begun(rules=PATIENT)
    run.say(FIRST, HOLE, SECOND, silence(5_800))
    assert not run.of(UtteranceEnded)
    run.say(silence(400))
    (final,) = run.of(Final)
    assert (final.text, final.ending) == ("one two three four five", Ending.PAUSE)
    assert final.end_samples < len(FIRST) + len(HOLE) + len(SECOND) + SAMPLE_RATE


def test_the_words_before_a_long_pause_are_committed_in_it():
    """Nothing that follows can change them; a client that comes back then sees them too."""
    run = begun(rules=MANUAL)
    run.say(FIRST, HOLE)
    assert run.of(Partial)[-1].committed == "one two three"
    assert run.session.current_partial == run.of(Partial)[-1]
    run.feed(Interrupted())
    run.feed(Flush())
    run.feed(Flush())
    assert [final.text for final in run.of(Final)] == ["one two three", ""]


def test_a_click_in_a_long_pause_is_no_part():
    """And does not make the pause a shorter one."""
    run = begun(rules=PATIENT)
    run.say(FIRST, HOLE, speech([7], word_ms=60), silence(3_000))
    (final,) = run.of(Final)
    assert [part.text for part in final.parts] == [final.text] == ["one two three"]


def test_a_part_that_fails_leaves_its_mark_on_the_final():
    run = begun(rules=MANUAL)
    run.failures = 1.0
    run.say(FIRST, HOLE)
    run.failures = 0.0
    run.say(SECOND)
    run.feed(Flush())
    (final,) = run.of(Final)
    assert final.text == "four five"
    assert isinstance(final.error, SessionError)


def test_an_utterance_that_the_caller_never_ends_ends_in_a_long_pause():
    """Once it is as long as one without pauses may be; else a session would have to be replayed from its beginning."""
    run = begun(rules=MANUAL, max_utterance_samples=5 * SAMPLE_RATE)
    run.say(*[SECOND, HOLE] * 4)
    run.feed(Flush())
    assert [final.ending for final in run.of(Final)] == [Ending.CUT, Ending.CUT, Ending.FLUSH]
    assert "".join(final.text for final in run.of(Final)) == "four five four five" * 2


def test_the_frame_that_completes_a_long_pause_is_heard_and_counted():
    """Speech that follows at once has it before its words, at its place: nothing of the audio is missing."""
    heard = []
    run = begun(rules=TurnConfig(min_silence_ms=6_000), on_frame=lambda frame: heard.append(frame.samples))
    run.say(FIRST, silence(5_500))
    while not run.of(UtteranceEnded):
        run.say(silence(32))
    account = run.session.account
    assert account.received == account.in_utterances + account.in_silence + account.discarded + account.open
    run.say(SECOND)
    run.feed(Flush())
    request = run.requests[-1]
    assert np.array_equal(np.concatenate(heard)[request.start_samples : request.end_samples], request.audio)
    assert request.start_samples < account.received
