"""Real people told apart and named: recognised in other recordings, and by models out of a directory."""

import asyncio
import io
from functools import partial

import numpy as np
import pytest

from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_wire import DecodeLimits
from asr_server.core.conftest import raises
from asr_server.features.speakers.diarization import model_source
from asr_server.features.speakers.diarization.client import SpeakerClient
from asr_server.features.speakers.enrolment import Enrolment
from asr_server.features.speakers.speaker_names import RecordingNames
from asr_server.features.speakers.voices import VoiceStore, named
from E2Etest.drive import recordings
from E2Etest.drive.session import pcm_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(model_source.missing_package()), reason=model_source.missing_package()),
]


def _clip(name):
    (clip,) = recordings.real_clips(name)
    return pcm_of(clip.path)


@pytest.mark.nightly
async def test_people_are_recognised_in_other_recordings(tmp_path):
    """Two who are stored and one who is not, also with a channel each; a reference of two of them is refused."""
    speakers, decoder, store = SpeakerClient(model_source.EMBEDDED), Decoder(DecodeLimits(60.0)), VoiceStore(tmp_path)
    enrolment = Enrolment(speakers, decoder, store, time_limit_s=100.0)

    async def enrol(name, pcm):
        await enrolment.enrol([io.BytesIO(recordings.wav(pcm))], name, "a test")

    reader, announcer = _clip("librivox_0870"), _clip("phone_confbridge-mute-extended")
    try:
        await enrol("Reader", reader)
        await enrol("Announcer", announcer[: 8 * 16_000])
        with raises("invalid_reference", match="more than one voice"):
            await enrol("Both", np.concatenate([reader, announcer[: 6 * 16_000]]))
        talk = [_clip("phone_vm-tmpexists"), _clip("jfk")[: 8 * 16_000], _clip("librivox_0920")]
        found = await speakers.diarize(np.concatenate(talk) / np.float32(32_768))
        names = named(found.voice_prints, store.comparable("", speakers.voice_model))
        assert names == ["Announcer", None, "Reader"]
        channels = dict(zip("ABC", [part / np.float32(32_768) for part in talk], strict=True))
        recognised = RecordingNames(
            speakers, [], partial(asyncio.to_thread, store.comparable, "", speakers.voice_model)
        )
        assert await recognised.of_channels(channels) == {"A": "Announcer", "B": "B", "C": "Reader"}
    finally:
        await asyncio.gather(speakers.close(), decoder.close())
