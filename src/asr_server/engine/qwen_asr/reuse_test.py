"""Drafts and session reuse on the bundled checkpoint: they save work and never change an id."""

import numpy as np
import pytest

from asr_server.engine.protocol import Utterance

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

RATE = 16_000
STEP_S = 2.3


@pytest.fixture(scope="module")
def recording(speech):
    """Half a minute of speech that never repeats at the same place, with a bang that moves the clamp late."""
    rng = np.random.default_rng(3)
    pieces = [speech * gain for gain in (0.2, 0.3, 0.15, 0.4, 0.3, 0.25, 0.3, 0.2, 0.35, 0.3)]
    whole = np.concatenate([np.concatenate([p, rng.normal(0, 1e-4, 3_000)]) for p in pieces]).astype(np.float32)
    whole = whole[: 26 * RATE]
    whole[19 * RATE : 19 * RATE + 200] = 0.95
    return whole


def _partials(recording):
    return [recording[: int(s * RATE)] for s in np.arange(STEP_S, len(recording) / RATE, STEP_S)]


@pytest.fixture(scope="module")
def fresh(make_engine, run, recording):
    """The ids of every partial when nothing is kept."""
    return [run(make_engine(1), [Utterance(part)])[0].ids for part in _partials(recording)]


@pytest.mark.parametrize("drafted", [False, True])
def test_session_reuse_never_changes_an_id(make_engine, run, recording, fresh, drafted):
    """Every partial equals a run from scratch, also past a bang that moves the log-mel clamp, and with a draft."""
    engine, draft = make_engine(1), ()
    for part, ids in zip(_partials(recording), fresh, strict=True):
        (got,) = run(engine, [Utterance(part, session=f"grow {drafted}", draft=draft)])
        assert got.ids == ids
        draft = got.ids if drafted else ()


def test_a_prompt_that_comes_again_is_not_run_again(make_engine, run, clips):
    """A prompt is kept at its second time; the ids are the same, and no other prompt is taken for it."""
    engine, names = make_engine(8), ", ".join(f"kitchen light {number}" for number in range(40))
    runtime = engine.runtime
    runtime.prefix_cache.clear()
    utterances = [Utterance(clip, context=names) for clip in clips[:3]]
    first, again = (runtime.tokens(runtime.prepare(0, utterances[0], 32)) for _ in range(2))
    assert first == again
    found = [run(engine, [utterances[0]])[0].ids]
    assert len(runtime.prefix_cache) == 0
    found += [run(engine, [utterances[1]])[0].ids]
    assert len(runtime.prefix_cache) == 1
    before = runtime.prepare(0, utterances[0], 32).prompt.before
    assert first - runtime.tokens(runtime.prepare(0, utterances[0], 32)) == len(before) > 100
    assert [one.ids for one in run(engine, utterances)[:2]] == found
    other = Utterance(clips[0], context=", ".join(reversed(names.split(", "))))
    assert len(runtime.prepare(0, other, 32).prompt.before) == len(before)
    assert runtime.tokens(runtime.prepare(0, other, 32)) == first
    runtime.prefix_cache.clear()
    assert run(engine, [utterances[2]])[0].ids == run(engine, [utterances[2]])[0].ids == run(engine, utterances)[2].ids


def test_every_window_that_closes_is_kept(make_engine, run, speech, monkeypatch):
    """After three windows a partial prefills as much as it did after one."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.engine.token_budget", lambda samples: 3)
    # As loud in every window, or what is kept would be made anew with the new clamp.
    sentence = speech[: len(speech) // 160 * 160]
    even = np.tile(sentence, 1 + 27 * RATE // len(sentence))
    engine, runtime = make_engine(1), make_engine(1).runtime
    prefilled = []
    for windows in (1, 2, 3):
        closed = int((8 * windows + 0.5) * RATE)
        run(engine, [Utterance(even[:closed], session="windows")])
        assert runtime.prefix_cache.get("windows").samples == 8 * windows * RATE
        growing = Utterance(even[: closed + RATE], session="windows")
        prefilled.append(runtime.tokens(runtime.prepare(0, growing, 32)))
    assert len(set(prefilled)) == 1


def test_another_recording_or_context_is_not_taken_for_the_old_one(make_engine, run, recording, fresh):
    """A key with other audio, or with another prompt, starts from scratch."""
    engine = make_engine(1)
    part = _partials(recording)[7]
    run(engine, [Utterance(part, session="key")])
    other = np.ascontiguousarray(part[::-1])
    assert run(engine, [Utterance(other, session="key")])[0].ids == run(engine, [Utterance(other)])[0].ids
    run(engine, [Utterance(part, session="key")])
    hinted = Utterance(_partials(recording)[8], session="key", context="kitchen")
    assert run(engine, [hinted])[0].ids == run(engine, [Utterance(hinted.audio, context="kitchen")])[0].ids


@pytest.mark.parametrize("extra", [1, 20, 39, 40, 160, 200])
def test_hardly_more_than_the_closed_windows_is_heard_as_without_them(make_engine, run, recording, extra):
    """A shorter clip than the last is cut after a window: its end is mirrored into that window's last frame."""
    engine = make_engine(1)
    loud_there = recording[RATE * 5 // 4 :]  # speech, and no pause, where it is cut
    run(engine, [Utterance(loud_there[: 9 * RATE], session="shorter")])
    cut = loud_there[: 8 * RATE + extra]
    (kept,), (anew,) = run(engine, [Utterance(cut, session="shorter")]), run(engine, [Utterance(cut)])
    assert kept.ids == anew.ids
    assert kept.logprobs == pytest.approx(anew.logprobs, abs=1e-4)


@pytest.mark.parametrize("last", [False, True])
def test_a_session_that_goes_on_after_a_pause_runs_only_what_is_new(make_engine, run, recording, fresh, last):
    """This holds after a final too: a final may be requested in a pause after which the speaker continues."""
    engine, key = make_engine(1), f"pause {last}"
    run(engine, [Utterance(_partials(recording)[8], session=key, last=last)])
    longer = Utterance(_partials(recording)[9], session=key)
    with_session, without = (engine.runtime.prepare(0, u, 32) for u in (longer, Utterance(longer.audio)))
    assert engine.runtime.tokens(without) - engine.runtime.tokens(with_session) > 2 * 104
    assert run(engine, [longer])[0].ids == fresh[9]


def test_nothing_is_kept_of_sessions_that_are_over(make_engine, run, recording, monkeypatch):
    """Whoever asked for nothing in a minute goes when any other row begins, one without a session too."""
    engine = make_engine(1)
    store = engine.runtime.prefix_cache
    store.clear()
    run(engine, [Utterance(_partials(recording)[8], session="left")])
    assert len(store) == 1
    later_s = store.clock() + 61.0
    monkeypatch.setattr(store, "clock", lambda: later_s)
    run(engine, [Utterance(recording[:RATE])])
    assert (len(store), store.held_bytes) == (0, 0)
