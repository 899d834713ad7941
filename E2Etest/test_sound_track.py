"""The page takes the sound out of a video before the upload: the server hears the same samples at the same times."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition

from asr_server import web
from asr_server.audio.conftest import decoded, film, open_bytes
from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_wire import DecodeLimits
from E2Etest.drive import recordings

SCRIPT = """
import { readFile, writeFile } from "node:fs/promises";
const { soundTrack } = await import(process.argv[1]);
const sound = await soundTrack(new Blob([await readFile(process.argv[2])]), { smallBytes: 0, worth: Infinity });
if (sound) await writeFile(process.argv[3], new Uint8Array(await sound.arrayBuffer()));
"""

# Formats with the options of their writer: the index behind the pictures or before them, clusters without a size, PCM.
FORMS = {
    "mp4": ("mp4", "aac", {}),
    "index-first": ("mp4", "aac", {"movflags": "faststart"}),
    "mov": ("mov", "aac", {}),
    "mov-pcm": ("mov", "pcm_s16le", {}),
    "matroska": ("matroska", "aac", {}),
    "webm": ("webm", "libopus", {}),
    "live": ("matroska", "libopus", {"live": "1"}),
}


def _video(container: str, codec: str, options: dict[str, str]) -> bytes:
    """Four seconds of noise for the eye, and for the ear two tracks of different loudness, the second the default."""
    chance = np.random.default_rng(1)
    with tempfile.NamedTemporaryFile() as sink, av.open(sink.name, "w", format=container, options=options) as out:
        video = out.add_stream("libvpx" if container == "webm" else "mpeg4", rate=10, width=320, height=240)
        video.pix_fmt, video.bit_rate = "yuv420p", 4_000_000
        sounds = [out.add_stream(codec, rate=48_000, layout="stereo") for _ in range(2)]
        sounds[0].disposition, sounds[1].disposition = Disposition(0), Disposition.default
        for second in range(4):
            for _ in range(10):
                noise = chance.integers(0, 255, (240, 320, 3), np.uint8)
                out.mux(video.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
            for number, sound in enumerate(sounds):
                for part in range(50):
                    samples = chance.normal(0, 0.1 / (1 + 9 * number), (2, 960)).astype(np.float32)
                    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="stereo")
                    frame.sample_rate, frame.pts = 48_000, 48_000 * second + 960 * part
                    out.mux(sound.encode(frame))
        for stream in (video, *sounds):
            out.mux(stream.encode(None))
        out.close()
        return Path(sink.name).read_bytes()


async def _heard(content: bytes) -> np.ndarray:
    decoder = Decoder(DecodeLimits(max_audio_s=60.0))
    try:
        with open_bytes(content) as file:
            return await decoded(decoder, file)
    finally:
        await decoder.close()


def _sound(content: bytes, folder: Path) -> bytes | None:
    """What the page would upload; None for the file as it is."""
    node = shutil.which("node")
    assert node, "The tests of the page's scripts need Node 18 or later: apt-get install -y nodejs"
    taken, made = folder / "video", folder / "sound"
    taken.write_bytes(content)
    made.unlink(missing_ok=True)
    module = next(iter(web.files().values())).parent / "sound-track.js"
    subprocess.run([node, "--input-type=module", "-e", SCRIPT, module, taken, made], check=True)
    return made.read_bytes() if made.exists() else None


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
async def test_the_sound_of_a_video_is_heard_as_before(tmp_path, form):
    """Sample by sample, from a small part of the bytes; of two tracks the default one."""
    content = _video(*FORMS[form])
    sound = _sound(content, tmp_path)
    assert sound is not None
    assert len(sound) < (0.6 if "pcm" in form else 0.2) * len(content)
    assert np.array_equal(await _heard(sound), await _heard(content))


@pytest.mark.nightly
@pytest.mark.parametrize("container", ["mp4", "matroska"])
@pytest.mark.parametrize(("late_s", "pause_s", "begins_s"), [(1.5, 0.0, 0.0), (0.0, 1.5, 0.0), (1.0, 2.0, 5.0)])
async def test_the_sound_keeps_its_place(tmp_path, container, late_s, pause_s, begins_s):
    """A track that begins behind the picture, or has a hole, does so without the picture."""
    spoken = recordings.samples()[None].astype(np.float32) / 32_768
    with film(container, np.repeat(spoken, 3, axis=1), late_s, pause_s, begins_s) as file:
        file.seek(0)
        content = file.read()
    sound = _sound(content, tmp_path)
    assert sound is not None
    assert np.array_equal(await _heard(sound), await _heard(content))


@pytest.mark.nightly
@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("form", ["index-first", "matroska"])
async def test_of_a_file_that_breaks_off_as_much_is_heard(tmp_path, form, cut):
    """The whole file is uploaded, or its sound up to the same place."""
    content = _video(*FORMS[form])
    content = content[: int(cut * len(content))]
    sound = _sound(content, tmp_path)
    if sound is not None:
        heard, before = await _heard(sound), await _heard(content)
        assert len(heard) >= len(before) - 16_000 // 5
        assert np.array_equal(heard[: len(before) - 16_000 // 5], before[: len(before) - 16_000 // 5])


@pytest.mark.parametrize(
    "made",
    [
        lambda: _video("mp4", "aac", {"movflags": "frag_keyframe+empty_moov"}),
        recordings.silent_video,
        lambda: recordings.sample()[0],
        lambda: recordings.encoded("mp4", "aac"),
        lambda: b"\x00\x00\x00\x18ftypmp42" + b"\xff" * 5000,
        lambda: b"\x1a\x45\xdf\xa3" + b"\xff" * 5000,
        lambda: b"\x1a\x45\xdf\xa3",
        lambda: b"",
    ],
    ids=["fragments", "no-sound", "wav", "no-picture", "damaged-mp4", "damaged-matroska", "head", "empty"],
)
def test_other_files_are_uploaded_as_they_are(tmp_path, made):
    """Forms that are not known here, and files without a picture or without a sound."""
    assert _sound(made(), tmp_path) is None
