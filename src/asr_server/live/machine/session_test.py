"""What a session does, example by example, with the synthetic speech of `conftest`."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server.live.machine.conftest import (
    begun,
    frames_of,
    pcm,
    play,
    receive,
    recognize,
    result_for,
    silence,
    speech,
)
from asr_server.live.machine.events import (
    Audio,
    Configure,
    Ending,
    Final,
    Flush,
    Partial,
    Reset,
    ResultKind,
    SessionError,
    Transcribe,
    TranscribeFailed,
    TurnConfig,
    UtteranceEnded,
    UtteranceStarted,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import Frame, LiveMachineConfig


def test_the_prefix_before_the_onset_belongs_to_the_utterance(talk):
    """The audio begins 300 ms before the first voiced frame, or at the end of the one before."""
    first = play(talk).of(UtteranceStarted)[0]
    assert 900 - 300 - 64 <= first.start_samples / 16 <= 900 - 300


def test_a_reset_forgets_half_a_sample():
    machine = LiveMachine(LiveMachineConfig())
    for event in (Audio(b"\x00\x10\x7f"), Reset(), Audio(b"\x00\x40")):
        receive(machine, event)
    assert [frame.tolist() for frame in frames_of(machine.block(Flush()))] == [[0.5]]


@pytest.mark.parametrize(
    ("late_frames", "prefix_samples", "is_whole"),
    [(14, SAMPLE_RATE, True), (20, SAMPLE_RATE, True), (14, SAMPLE_RATE // 4, False)],
)
def test_speech_in_which_a_session_goes_on_is_whole_however_late_it_is_heard(late_frames, prefix_samples, is_whole):
    """Also if a flush takes speech that is not heard yet. Later speech has the usual prefix."""
    machine = LiveMachine(LiveMachineConfig(first_prefix_samples=prefix_samples))
    frames = frames_of(machine.block(pcm(speech([1, 2, 3], word_ms=320, gap_ms=0)[: 20 * FRAME_SAMPLES])))
    scored = [Frame(samples, float(place >= late_frames)) for place, samples in enumerate(frames)]
    actions = machine.receive(Audio(b""), scored) + machine.receive(Flush())
    (ended,) = [one for one in actions if isinstance(one, UtteranceEnded)]
    assert (ended.start_samples == 0, ended.end_samples) == (is_whole, 20 * FRAME_SAMPLES)
    assert (machine.account.in_utterances == machine.account.received) is is_whole


def test_the_final_comes_with_the_endpoint_frame_when_the_pause_was_already_heard(talk):
    """Asked once the margin behind the speech is there, answered before the endpoint: nothing to wait for."""
    run, data, finals = begun(), talk.astype("<i2").tobytes(), []
    for at in range(0, len(data), 1_024):
        before = len(run.actions)
        run.feed(Audio(data[at : at + 1_024]))
        new = run.actions[before:]
        if any(isinstance(one, UtteranceEnded) for one in new):
            assert [type(one) for one in new] == [UtteranceEnded, Final]
            finals.append(new[1].text)
    assert finals == ["one two three four five six", "seven eight nine"]


def test_one_request_at_a_time_and_the_newest_audio_wins():
    """While a result is outstanding nothing is requested; then one request covers all that came meanwhile."""
    run = begun()
    run.delay = 1.0
    run.say(speech([1, 2] * 40))
    assert len(run.requests) == 1
    run.answer()
    assert len(run.requests) == 2
    assert len(run.requests[1].audio) > 20 * 16 * 500


def test_a_partial_is_requested_at_most_every_buffer_of_speech():
    """Between two requests lie at least `partial_every_samples` of audio. The words that are committed are forced."""
    run = begun()
    run.say(speech([1, 2] * 30))
    ends = [request.end_samples for request in run.requests if request.utterance == 1]
    assert len(ends) > 10
    assert min(np.diff(ends)) >= 7_200
    assert 0 < len(run.requests[-1].prefix) < len(run.requests[-1].draft)


@pytest.mark.parametrize("manual", [False, True])
def test_a_turn_without_speech_is_empty(manual):
    """A turn without speech makes no request to the model, whoever ends it and however long it is."""
    run = begun(rules=TurnConfig(manual=manual), max_utterance_samples=5 * SAMPLE_RATE)
    for ms in (100, 3_000, 12_000):
        run.feed(pcm(silence(ms)))
        run.feed(Flush())
    assert [(final.text, final.ending) for final in run.of(Final)] == [("", Ending.FLUSH)] * 3
    assert not run.requests


@pytest.mark.parametrize("pause_ms", [560, 900])
def test_the_margin_before_speech_may_be_the_end_of_the_utterance_before(pause_ms):
    """Of a short pause both utterances hear the most, but not the end of the last word."""
    run = play(np.concatenate([speech([1, 2]), silence(pause_ms), speech([3]), silence(900)]))
    first, second = run.of(UtteranceEnded)
    assert 16 * (560 + 300) - 2 * FRAME_SAMPLES <= first.end_samples <= second.start_samples
    assert run.requests[-1].start_samples <= 16 * (560 + pause_ms - 300) + FRAME_SAMPLES
    assert [final.text for final in run.of(Final)] == ["one two", "three"]


def test_a_long_utterance_is_cut_in_its_last_third_and_nothing_is_lost():
    """The next begins with the next sample, where it was quietest."""
    *cut, last = play(speech([i % 10 for i in range(60)]), max_utterance_samples=5 * SAMPLE_RATE).of(Final)
    assert {final.ending for final in cut} == {Ending.CUT}
    for before, after in itertools.pairwise([*cut, last]):
        assert before.end_samples == after.start_samples
        length = before.end_samples - before.start_samples
        assert 5 * SAMPLE_RATE * 2 / 3 - 512 <= length <= 5 * SAMPLE_RATE + 512


def test_nothing_is_committed_where_the_cut_may_fall():
    """Committed words cannot move to the next utterance: all are from before the last third."""
    run = play(speech([i % 10 for i in range(40)]), max_utterance_samples=9 * SAMPLE_RATE)
    assert 5.0 < max(0.28 * len(p.committed.split()) for p in run.of(Partial) if p.utterance == 1) <= 6.0


def test_a_final_that_fails_once_is_requested_again():
    """The words are worth a second try, and nobody hears of the first."""
    run = begun()
    run.delay = 1.0
    run.feed(pcm(speech([1, 2, 3, 4])))
    run.feed(Flush())
    run.session.receive(TranscribeFailed(run.requests[-1].ticket - 1, "x", "stale"))
    again = run.session.receive(TranscribeFailed(run.requests[-1].ticket, "transcription_failed", "injected"))
    assert [type(action) for action in again] == [Transcribe]
    (final,) = run.session.receive(result_for(again[0].ticket, (1, 2, 3, 4)))
    assert final.text == "one two three four"


def test_a_failed_partial_is_reported_once_and_the_session_goes_on():
    """The error never becomes text, and the final is whole."""
    run = begun()
    run.failures = 1.0
    run.say(speech([1, 2, 3, 4, 5, 6, 7]))
    run.failures = 0.0
    run.say(speech([8]))
    run.feed(Flush())
    assert [error.utterance for error in run.of(SessionError)] == [1]
    assert [(f.text, f.error) for f in run.of(Final)] == [("one two three four five six seven eight", None)]


def test_a_final_that_fails_twice_closes_with_what_was_known():
    """The error is reported, then the utterance is closed with the last text that was known, and with the error."""
    run = begun()
    run.feed(pcm(speech([1, 2, 3, 4])))
    known = run.of(Partial)[-1].text
    run.failures = 1.0
    run.feed(pcm(speech([5])))
    run.feed(Flush())
    assert isinstance(run.actions[-2], SessionError)
    assert (run.actions[-1].text, run.actions[-1].error) == (known, run.actions[-2])
    run.failures = 0.0
    run.feed(pcm(speech([6, 7])))
    run.feed(Flush())
    assert run.of(Final)[-1].text == "six seven"


def _spoken_with_two_engines(words, **changes):
    """A run in which the lesser engine hears each "nine" as "zero"; the words in a row, and no pause after them."""
    run = begun(separate_final_engine=True, partial_every_samples=2_048, **changes)
    answer = run.answer

    def answer_by_kind():
        if run.pending[0].kind is ResultKind.FINAL:
            answer()
            return
        request = run.pending.pop(0)
        ids = tuple(0 if word == 9 else word for word in recognize(request.audio))
        run.feed(result_for(request.ticket, (*request.prefix, *ids[len(request.prefix) :])))

    run.answer = answer_by_kind
    run.say(speech(words))
    return run


def test_the_lesser_engine_commits_no_word():
    """However often its partials agree; they are shown, and may all still change."""
    run = _spoken_with_two_engines([1, 9, 2, 3, 4, 5, 6])
    assert len(run.of(Partial)) > 3
    assert "one zero two three" in run.of(Partial)[-1].tentative
    assert {partial.committed for partial in run.of(Partial)} == {""}
    run.finish()
    assert run.of(Final)[0].text == "one nine two three four five six"


def test_without_a_pause_the_better_engine_confirms_the_words_now_and_then():
    """What it confirms is committed, in its own words, and the lesser engine goes on from there."""
    run = _spoken_with_two_engines([1, 9, 2, 3, 4, 5, 6] * 3, confirm_every_samples=32_000)
    kinds = [request.kind for request in run.requests]
    assert 2 <= kinds.count(ResultKind.FINAL) < len(kinds) / 4
    committed = run.of(Partial)[-1].committed
    assert committed.startswith("one nine two three")
    later = next(r for r in reversed(run.requests) if r.kind is ResultKind.PARTIAL)
    assert later.committed
    assert committed.startswith(later.committed)
    run.finish()
    assert run.of(Final)[0].text.startswith(committed)


def test_another_model_of_the_session_makes_its_own_partials():
    """Only the default has a lesser engine beside it: a partial on all audio serves as the final."""
    rules = TurnConfig(manual=True, model="other")
    run = begun(separate_final_engine=True, rules=rules, partial_every_samples=512)
    run.feed(pcm(speech([1, 2])[: 512 * 10]))
    run.feed(Flush())
    assert {(request.kind, request.model) for request in run.requests} == {(ResultKind.PARTIAL, "other")}
    assert run.of(Final)


@pytest.mark.parametrize("flushed_first", [True, False])
def test_a_rough_answer_closes_no_utterance(flushed_first):
    """Words may be missing from it: the final is requested, once, although nothing new was said."""
    run = begun(rules=TurnConfig(manual=True), partial_every_samples=512)
    run.delay = 1.0
    run.feed(pcm(speech([1, 2])[: 512 * 10]))
    run.answer()  # of the first frame; the question that waits now is about all of them
    request = run.pending.pop()
    truncated = replace(result_for(request.ticket, recognize(request.audio)), truncated=True)
    for event in [Flush(), truncated] if flushed_first else [truncated, Flush()]:
        run.feed(event)
    assert not run.of(Final)
    (again,) = run.pending
    assert (again.kind, again.audio.shape) == (ResultKind.FINAL, request.audio.shape)
    run.answer()
    assert [final.text for final in run.of(Final)] == [truncated.text]
    assert not run.pending


def _lengths_after_a_change(rate):
    talk = np.concatenate([speech([3, 4, 5]), silence(1_000)])
    run = begun()
    run.feed(pcm(speech([1, 2]), silence(900)))
    run.feed(Configure(TurnConfig(), rate))
    run.feed(pcm(talk[(np.arange(len(talk) * rate // SAMPLE_RATE) * SAMPLE_RATE / rate).astype(int)]))
    run.finish()
    assert run.of(Final)[0].text == "one two"
    return [final.end_samples - final.start_samples for final in run.of(Final)]


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_a_change_of_the_input_rate_keeps_what_was_said(rate):
    """The new rate holds from the next byte on: utterances are as long as they are at the rate of the models."""
    assert _lengths_after_a_change(rate) == pytest.approx(_lengths_after_a_change(SAMPLE_RATE), abs=FRAME_SAMPLES)
