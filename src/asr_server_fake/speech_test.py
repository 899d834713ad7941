"""The speech engine `fake`: what its script can do to a sentence, a step and a load."""

import numpy as np
import pytest

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import EngineOutOfMemory, SpeechFailed
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechFinish, VoiceSample
from asr_server.schedule.ports import RowDelta, RowDone, RowFailed
from asr_server_fake import script
from asr_server_fake.script import FakeScript, Fault, SpeechRule, SpokenScript
from asr_server_fake.speech import BLOCK_SAMPLES, FakeSpeechEngine

LONG = Sentence("a" * 40, "low")  # two seconds


def scripted(*rules):
    engine = FakeSpeechEngine(FakeScript(speech=SpokenScript(rules)))
    engine.load()
    return engine


def outcomes(engine, *sentences):
    for key, sentence in enumerate(sentences):
        engine.admit(key, sentence)
    found = []
    while engine.free_slots < 4:
        found += engine.step()
    return found


def test_a_row_fails_after_some_blocks_and_its_neighbour_does_not():
    """The rule is for sentences with its text."""
    rule = SpeechRule(text="bad", fault=Fault.RAISE, after_blocks=2)
    found = outcomes(scripted(rule), Sentence("bad" * 20, "low"), LONG)
    assert [type(one) for one in found if one.key == 0] == [RowDelta, RowDelta, RowFailed]
    assert isinstance(next(one.error for one in found if isinstance(one, RowFailed)), SpeechFailed)
    assert next(one.value.samples for one in found if isinstance(one, RowDone)) == 2 * SPEECH_RATE


def test_a_rule_applies_as_often_as_it_says():
    """The rule applies to the call that it names, and to no other."""
    engine = scripted(SpeechRule(fault=Fault.MEMORY, at="admission", times=1), SpeechRule(call=3, fault=Fault.RAISE))
    with pytest.raises(EngineOutOfMemory):
        engine.admit(1, LONG)
    ends = [type(outcomes(engine, LONG)[-1]) for _ in range(3)]
    assert ends == [RowDone, RowFailed, RowDone]


def test_a_sentence_ends_at_its_budget():
    """The sentence has half of its samples."""
    done = outcomes(scripted(SpeechRule(finish=SpeechFinish.BUDGET)), LONG)[-1].value
    assert (done.finish, done.samples) == (SpeechFinish.BUDGET, SPEECH_RATE)


def test_a_sample_is_imitated_by_its_strongest_frequency():
    """Had it another rate than the contract's, the frequency would be another."""
    seconds = np.arange(2 * SPEECH_RATE) / SPEECH_RATE
    voice = 0.6 * np.sin(2 * np.pi * 440 * seconds) + 0.2 * np.sin(2 * np.pi * 880 * seconds)
    item = Sentence(LONG.text, sample=VoiceSample(voice.astype(np.float32), "", "key"))
    spoken = np.concatenate([one.value for one in outcomes(scripted(), item) if isinstance(one, RowDelta)])
    assert abs(np.abs(np.fft.rfft(spoken)).argmax() * SPEECH_RATE / len(spoken) - 440) < 1


def test_the_script_is_a_part_of_the_file_of_the_other_fake_engine(tmp_path):
    """An unknown field is an error."""
    path = tmp_path / "script.json"
    path.write_text('{"speech": {"rules": [{"text": "bad", "fault": "raise", "after_blocks": 1}]}}')
    engine = FakeSpeechEngine(path)
    engine.load()
    found = outcomes(engine, Sentence("bad" * 9, "high"))
    assert [type(one) for one in found] == [RowDelta, RowFailed]
    assert len(found[0].value) == BLOCK_SAMPLES
    path.write_text('{"speech": {"rules": [{"words": "bad"}]}}')
    with pytest.raises(script.ScriptError, match=r"speech.rules.0.words"):
        script.read(path)
