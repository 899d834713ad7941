"""The two shapes say the same."""

import pytest

from asr_server.core.errors import InvalidInput, InvalidType, InvalidValue, UnknownParameter
from asr_server.engine.catalog import Catalog
from asr_server.features.realtime import shapes
from asr_server.features.realtime.config import ServerDefaults
from asr_server.features.realtime.shapes import Identity
from asr_server.live.machine.events import TurnConfig

DEFAULTS = ServerDefaults(Catalog("demo"), TurnConfig())
ME = Identity("sess_1", 1_795_600_000)


@pytest.mark.parametrize("name", ["pcm16", "g711_ulaw", "g711_alaw"])
def test_a_flat_session_sent_back_changes_nothing(name):
    """Beta out, beta in: the configuration it came from."""
    flat = {"input_audio_format": name, "turn_detection": None, "input_audio_noise_reduction": {"type": "far_field"}}
    config = DEFAULTS.updated(DEFAULTS.initial(), shapes.from_beta(flat))
    shown = shapes.beta(config, ME)
    assert shown["input_audio_format"] == name
    assert DEFAULTS.updated(config, shapes.from_beta(shown)) == config


def test_both_shapes_have_their_keys():
    """Those of the contract, nulls among them."""
    config = DEFAULTS.updated(
        DEFAULTS.initial(), {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
    )
    ga = shapes.ga(config, ME)
    assert set(ga) == {"type", "object", "id", "expires_at", "audio", "include"}
    assert set(ga["audio"]["input"]) == {"format", "transcription", "noise_reduction", "turn_detection"}
    assert ga["audio"]["input"]["transcription"] == {"model": "demo", "language": None, "prompt": ""}
    assert ga["audio"]["input"]["turn_detection"] is None
    beta = shapes.beta(config, ME, {"value": "ek_1", "expires_at": 5})
    assert beta["modalities"] == ["audio", "text"]
    assert beta["client_secret"] == {"value": "ek_1", "expires_at": 5}


@pytest.mark.parametrize(
    ("flat", "error", "param"),
    [
        ({"colour": 1}, UnknownParameter, "session.colour"),
        ({"input_audio_format": 5}, InvalidType, "session.input_audio_format"),
        ({"input_audio_format": "mp3"}, InvalidValue, "session.input_audio_format"),
    ],
)
def test_what_is_wrong_is_named_in_the_flat_shape(flat, error, param):
    """Before it is translated."""
    with pytest.raises(error) as refused:
        shapes.from_beta(flat)
    assert refused.value.param == param


def test_what_is_found_wrong_later_is_named_in_the_flat_shape_too():
    """The nested path is put back."""
    with pytest.raises(InvalidInput) as refused:
        DEFAULTS.updated(DEFAULTS.initial(), shapes.from_beta({"turn_detection": {"threshold": 9}}))
    told = shapes.with_beta_path(refused.value)
    assert told.param == "session.turn_detection.threshold"
    assert "session.turn_detection.threshold" in told.message


def test_a_flat_session_is_known_by_its_keys_and_heard_by_its_input():
    """Whatever else an agent says of its answers; a nested one stays what it is."""
    agent = {"voice": "alloy", "instructions": "Be kind.", "input_audio_format": "g711_ulaw", "turn_detection": None}
    assert shapes.is_flat(agent)
    config = DEFAULTS.updated(DEFAULTS.initial(), shapes.from_beta(shapes.heard(agent)))
    assert (config.input.format.type, config.input.turn_detection) == ("audio/pcmu", None)
    assert not shapes.is_flat({"type": "transcription", "audio": {"input": {"turn_detection": None}}})
    assert not shapes.is_flat({"type": "transcription"})
