"""Recordings of people in Mandarin, Cantonese and Japanese, through a server whose remote engine is Whisper base.

Whisper makes errors of its own: each test compares with the answers of Whisper to the whole recordings.
"""

import os
import unicodedata

import httpx
import pytest
import srt

from asr_server.text.words import CLOSING, GLUED, measure
from E2Etest.drive import recordings, session
from E2Etest.drive.process import ready, running
from E2Etest.live.interrupted import laws, spoken

ROOT = recordings.REAL.parents[1]
WHISPER = ROOT / ".venv" / "whisper"
CODES = {"Chinese": "zh", "Cantonese": "zh", "Japanese": "ja"}  # Whisper base has no name for Cantonese
CLIPS = [recordings.real_clips("fleurs", language=language)[0] for language in CODES]
COLUMNS = 24

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.accuracy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (WHISPER / "ctranslate2").exists(), reason="the wheels of Whisper are not installed"),
]


def letters(text):
    """Return the letters and digits: Whisper writes punctuation, the transcripts of the recordings do not."""
    return "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char)[0] in "LNM")


def errors(texts):
    """Return the wrong characters of a text for each clip."""
    pairs = zip(CLIPS, texts, strict=True)
    return sum(recordings.word_errors(letters(clip.text), letters(text)) for clip, text in pairs)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """The address of a server with Whisper base."""
    program = ("-m", "E2Etest.languages.whisper_server")
    path = os.pathsep.join(map(str, (WHISPER, ROOT)))
    with running(tmp_path_factory.mktemp("whisper") / "log", program=program, PYTHONPATH=path) as started:
        yield f"{started.base}/v1"


@pytest.fixture(scope="module")
def server(tmp_path_factory, whisper):
    """Our server, which uses Whisper's as its remote engine."""
    with ready(tmp_path_factory.mktemp("server") / "log", VLLM_BASE_URL=whisper) as started:
        yield started


@pytest.fixture(scope="module")
def heard(whisper):
    """Whisper's text of each whole recording."""
    address = f"{whisper}/audio/transcriptions"
    return [httpx.post(address, files={"file": clip.path.read_bytes()}, timeout=120).json()["text"] for clip in CLIPS]


def test_files_add_no_errors(server, heard):
    """Without the voice detector, which leaves out silence, the text is Whisper's, letter by letter. The language is
    that which it reports."""
    answers = [server.transcribe(clip.path.read_bytes(), response_format="verbose_json").json() for clip in CLIPS]
    assert errors([answer["text"] for answer in answers]) <= errors(heard)
    assert [answer["language_code"] for answer in answers] == list(CODES.values())
    texts = [server.transcribe(clip.path.read_bytes(), vad="off").json()["text"] for clip in CLIPS]
    assert list(map(letters, texts)) == list(map(letters, heard))


def test_live_sessions_add_no_errors(server, heard):
    """Committed text is never taken back, also in scripts that are written without spaces."""
    texts = []
    for clip in CLIPS:
        messages = spoken(server, session.data(session.pcm_of(clip.path)), (), pace_s=0.05)  # twice as fast as spoken
        laws(messages)
        texts.append("".join(text for text, *_ in session.finals(messages)))
    assert errors(texts) <= errors(heard)


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: clip.language)
def test_subtitles_have_the_width_and_the_breaks_of_the_script(server, clip):
    """A character has two columns; no line begins with closing punctuation."""
    files = {"file": clip.path.read_bytes()}
    form = {"format": "srt", "max_line_chars": COLUMNS, "mode": "fast"}
    cues = list(srt.parse(server.client.post("/v1/audio/subtitles", files=files, data=form).text))
    lines = [line for cue in cues for line in cue.content.splitlines()]
    assert len(lines) > 1
    assert max(measure(line).columns for line in lines) <= COLUMNS
    assert all(line[0] not in CLOSING + GLUED for line in lines)
    assert all(cue.start < cue.end for cue in cues)
    spoken = server.transcribe(clip.path.read_bytes()).json()["text"]
    assert letters("".join(lines)) == letters(spoken)
