"""The order of the messages of a live session."""

from types import SimpleNamespace

import pytest

from asr_server.core.transcript import TimeSource, Word
from asr_server.features.deepgram.listen import ListenConnection
from asr_server.features.deepgram.options import LiveListenOptions
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import Ending, Final, Partial, TurnConfig, UtteranceStarted


def _final(number, text):
    return Final(number, text, "English", 16_000 * number, 16_000 * (number + 1), Ending.PAUSE)


def _words(number, text):
    begin_ms = 1_000 * number
    return WordTimestamps(number, (Word(text, begin_ms, begin_ms + 500, TimeSource.ESTIMATED, None, None),))


@pytest.mark.parametrize("late", [1, 3, 5])
def test_a_final_waits_for_its_words_and_all_that_follows_waits_behind_it(late):
    wanted = LiveListenOptions(interim_results=True, vad_events=True, utterance_end_ms=1_000)
    services = SimpleNamespace(plan=SimpleNamespace(model_id="demo"))
    connection = ListenConnection(None, services, wanted, TurnConfig())
    second = [UtteranceStarted(2, 32_000), Partial(2, "", "two", "English", 32_000, 40_000), _final(2, "two")]
    messages = [_final(1, "one"), *second, _words(2, "two")]
    messages.insert(late, _words(1, "one"))
    told = [each for message in messages for each in connection.messages(message)]
    kinds = " ".join(each["type"] for each in told)
    assert kinds == "Results UtteranceEnd SpeechStarted Results Results UtteranceEnd"
    finals = [each["channel"]["alternatives"][0] for each in told if each.get("is_final")]
    spoken = [(final["transcript"], [word["word"] for word in final["words"]]) for final in finals]
    assert spoken == [("one", ["one"]), ("two", ["two"])]
