"""What a session does for callers that end turns by commits or by sentences, and what its finals carry."""

import pytest

from asr_server.core.transcript import Token
from asr_server.live.machine.conftest import begun, pcm, receive, silence, speech
from asr_server.live.machine.events import (
    Ending,
    Final,
    Flush,
    Transcribe,
    TranscribeResult,
    TurnConfig,
    UtteranceEnded,
)
from asr_server.live.machine.session import Endpointer, LiveMachine
from asr_server.live.machine.utterance import LiveMachineConfig

SENTENCES = TurnConfig(min_silence_ms=2_000, sentence_silence_ms=500)


@pytest.mark.parametrize(
    ("rules", "margin_samples", "mark", "utterances"),
    [
        *((SENTENCES, 4_800, mark, utterances) for mark, utterances in ((".", 2), ("?", 2), ("", 1), (",", 1))),
        # The text is requested in time, also with no margin or with one longer than the pause.
        *((SENTENCES, margin_samples, ".", 2) for margin_samples in (0, 2_400, 16_000)),
        (TurnConfig(min_silence_ms=2_000), 4_800, ".", 1),  # the rule is off by default
    ],
)
def test_a_short_pause_ends_an_utterance_only_behind_a_sentence(rules, margin_samples, mark, utterances):
    """Of 0.8 s, with 2 s as the longest pause: the full stop decides."""
    run = begun(rules=rules, margin_samples=margin_samples)
    run.mark = mark
    run.say(speech([1, 2, 3]), silence(800), speech([4, 5]), silence(2_500))
    assert [ended.ending for ended in run.of(UtteranceEnded)] == [Ending.PAUSE] * utterances


@pytest.mark.parametrize("known_before", [True, False])
def test_a_final_carries_the_tokens_that_wrote_it(known_before):
    """From the answer to the final, or from the hypothesis that was known; those that name the language left out."""
    session, finals = LiveMachine(LiveMachineConfig()), []
    actions = receive(session, pcm(speech([1, 2]), silence(300 if known_before else 0)))
    actions += receive(session, Flush()) if not known_before else []
    written = {"offsets": (0, 3, 7), "logprobs": (-0.1, -0.2, -0.3), "pieces": (b"", b"one", b" two")}
    while requests := [e for e in actions if isinstance(e, Transcribe)]:
        answer = TranscribeResult(requests[-1].ticket, "one two", "English", (7, 1, 2), **written)
        actions = session.receive(answer) + (receive(session, pcm(silence(600))) if known_before else [])
        finals += [e for e in actions if isinstance(e, Final)]
    (final,) = finals
    assert final.tokens == (Token(b"one", -0.2), Token(b" two", -0.3))


@pytest.mark.parametrize(
    ("probabilities", "signals"),
    [
        ([0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], "....OvhhhE."),
        ([1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], "..........O"),  # a click, then speech
        ([1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0], "...OhhhvhhhE"),  # a short pause inside
        ([1, 1, 1, 1, 0.4, 0.4, 0.4, 0.4, 0.4], "...Ovvvvv"),  # speech continues between the thresholds
        ([1, 1, 1, 1, 0.3, 0.4, 0.4, 0.4], "...OhhhE"),  # and so does a pause
        ([0.4] * 6, "......"),  # but neither begins there
        ([1, 0, 1, 1, 0, 0], "...O" + "hh"),  # a dip in an onset
    ],
)
def test_speech_begins_and_ends_with_hysteresis(probabilities, signals):
    """Speech begins at the threshold after 100 ms and ends when it was left for the whole pause."""
    endpointer, found = Endpointer(0.5, 32 * 4), ""  # the shortest pause that ends an utterance has four frames
    letters = dict(zip(("SILENT", "ONSET", "VOICED", "PAUSED", "ENDPOINT"), ".OvhE", strict=True))
    for probability in probabilities:
        found += letters[endpointer.signal(probability).name]
        if found[-1] == "E":
            endpointer.reset()
    assert found == signals
