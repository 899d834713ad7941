"""Configurations: what merging and checking hold to."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput
from asr_server.engine.catalog import Catalog
from asr_server.features.realtime.config import Config, ServerDefaults
from asr_server.live.machine.events import EndOfTurnRules, TurnConfig

DEFAULTS = ServerDefaults(Catalog("demo"), TurnConfig(min_silence_ms=400))
JUDGING = replace(DEFAULTS, rules=replace(DEFAULTS.rules, end_of_turn=EndOfTurnRules()), judges_pauses=True)


def _updated(config, **heard):
    return DEFAULTS.updated(config, {"type": "transcription", "audio": {"input": heard}})


_PATCHES = [
    {"turn_detection": {"type": "server_vad", "threshold": 0.4, "idle_timeout_ms": 6_000}},
    {"turn_detection": {"type": "server_vad", "silence_duration_ms": 700}, "format": {"type": "audio/pcmu"}},
    {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}},
    {"turn_detection": {"type": "semantic_vad"}, "transcription": {"language": "de-AT", "prompt": "Oder"}},
    {"turn_detection": None, "format": {"type": "audio/pcm", "rate": 16_000}},
    {"transcription": None, "noise_reduction": {"type": "near_field"}},
    {"transcription": {"language": None}, "noise_reduction": {"strength": 0.5}},
    {"transcription": {}, "noise_reduction": None},
]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.permutations(_PATCHES))
def test_every_valid_update_gives_a_whole_configuration_that_can_be_sent_back(patches):
    """After any row of updates the effective configuration is valid, is its own update, and makes rules."""
    config = DEFAULTS.initial()
    for patch in patches:
        before, config = config, _updated(config, **patch)
        for name in {"turn_detection", "format", "transcription", "noise_reduction"} - set(patch):
            assert getattr(config.input, name) == getattr(before.input, name)
        assert DEFAULTS.updated(config, config.model_dump()) == config
        assert Config.model_validate(config.model_dump()) == config
        assert DEFAULTS.rules_of(config).manual == (config.input.turn_detection is None)


def test_keywords_have_a_length_together():
    """The engine reads them for every partial: as many as in a file's form, however they are spread."""
    config = _updated(DEFAULTS.initial(), transcription={"keywords": ["x" * 200] * 80})
    with raises("invalid_value") as refused:
        _updated(config, transcription={"keywords": ["x" * 200] * 81})
    assert refused.value.param == "session.audio.input.transcription.keywords"


def _rules(defaults=DEFAULTS, **heard):
    return defaults.rules_of(_updated(defaults.initial(), **heard))


@pytest.mark.parametrize(
    ("eagerness", "sure", "longest_ms"),
    [("low", 0.9, 8_000), ("medium", 0.8, 4_000), ("auto", 0.8, 4_000), ("high", 0.5, 2_000)],
)
def test_eagerness_is_certainty_and_patience(eagerness, sure, longest_ms):
    """With an estimate of the end of a turn the text does not count. Without one a pause after a sentence is short."""
    turn_detection = {"type": "semantic_vad", "eagerness": eagerness}
    timed = _rules(turn_detection=turn_detection)
    assert (timed.end_of_turn, timed.min_silence_ms, timed.sentence_silence_ms) == (None, longest_ms, 400)
    judged = _rules(JUDGING, turn_detection=turn_detection)
    assert judged.end_of_turn == EndOfTurnRules(sure, longest_ms)
    assert (judged.min_silence_ms, judged.sentence_silence_ms) == (400, None)


def test_what_the_rules_say():
    """With `server_vad` pauses decide, and with null the commits. One language is forced, of several none. Words and
    prompt are the context."""
    for turn_detection in ({"type": "server_vad"}, None):
        assert _rules(JUDGING, turn_detection=turn_detection).end_of_turn is None
    rules = _rules(transcription={"languages": ["de"], "keywords": ["Kran", "Bagger"], "prompt": "Baustelle"})
    assert (rules.language, rules.context) == ("German", "Baustelle\nKran, Bagger")
    assert _rules(transcription={"languages": ["de", "en"]}).language is None


@pytest.mark.parametrize("depth", [950, 5_000])
def test_a_deep_update_is_refused(depth):
    patch = inner = {"type": "transcription"}
    for _ in range(depth):
        inner["x"] = inner = {}
    with pytest.raises(InvalidInput):
        DEFAULTS.updated(DEFAULTS.initial(), patch)
