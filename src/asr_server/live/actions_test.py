"""What the native live socket takes for an action."""

import json

import numpy as np
import pytest

from asr_server.core.conftest import raises
from asr_server.live.actions import parse_action, parse_query


@pytest.mark.parametrize("hotwords", ['["\\ud800"]', '"lamp \\udfff"'])
def test_halves_of_characters_are_refused_and_not_left_to_the_model(hotwords):
    """JSON may hold them; every utterance with them in its prompt would fail."""
    with raises("malformed_body"):
        parse_action(f'{{"action":"config","hotwords":{hotwords}}}')


def test_whole_characters_may_be_written_as_two_halves():
    """As JavaScript and Python write them."""
    assert parse_action('{"action":"config","hotwords":["\\ud83d\\ude00"]}').words == "\U0001f600"


@pytest.mark.parametrize("hotwords", ["x" * 16_001, ["word " * 100] * 40])
def test_more_hotwords_than_the_model_should_read_are_refused(hotwords):
    """As in a file's form: with every partial of the session the engine would read them for all others' time."""
    with raises("invalid_value") as refused:
        parse_action(json.dumps({"action": "config", "hotwords": hotwords}))
    assert refused.value.param == "hotwords"
    assert parse_action(json.dumps({"action": "config", "hotwords": hotwords[:30]})).words


def test_floats_beyond_the_range_are_clipped_and_no_number_is_silence():
    """Infinite values are clipped too."""
    sent = np.array([np.nan, 2.0, -2.0, 0.5, np.inf, -np.inf, 3e38], "<f4")
    pcm = parse_query({"encoding": "pcm_f32le"}).decoder.pcm(sent.tobytes())
    assert np.frombuffer(pcm, "<i2").tolist() == [0, 32767, -32768, 16384, 32767, -32768, 32767]
