"""Texts as jobs, with the scripted engine: their files, and what fails and is spoken again without a trace."""

import io
import json
from types import SimpleNamespace

import av
import numpy as np
import pytest
import soundfile

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import DeadlineExceeded, SpeechFailed
from asr_server.features.speech_output import speech_jobs
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.requests import Chapter, SpeechJobRequest
from asr_server.features.speech_output.script import spoken_s
from asr_server.features.speech_output.speech_jobs import SpeechJobs, beginning, expected_bytes, text_parts
from asr_server.jobs import runner as work
from asr_server.jobs.record import JobRecord, new_id
from asr_server.jobs.runner import JobRun
from asr_server.text.sentences import sentences
from asr_server_fake.script import Fault, SpeechRule

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAPTERS = tuple(
    Chapter(title=f"Chapter {name}", text=" ".join(f"Sentence {number} is about {name}." for number in range(6)))
    for name in ("ants", "bees", "cows")
)
REQUEST = SpeechJobRequest(response_format=SpeechFormat.PCM, pause_ms=100)


def changed(**fields):
    return SpeechJobRequest(**{**REQUEST.model_dump(), **fields})


@pytest.fixture(autouse=True)
def short_parts(monkeypatch):
    """Two or three sentences in each part, nine parts in all, and no second between attempts."""
    monkeypatch.setattr(speech_jobs, "PART_S", 2.5)
    monkeypatch.setattr(work, "_RETRY_S", 0.001)


def job(request=REQUEST, chapters=CHAPTERS, timeout_s=60.0, report=lambda **progress: None):
    """The run of a job for this request, whose progress is reported."""
    record = JobRecord(new_id(), request, 1.0, characters=sum(len(chapter.text) for chapter in chapters))
    text = io.BytesIO(json.dumps([chapter.model_dump() for chapter in chapters]).encode())
    return JobRun(record, request, text, io.BytesIO, timeout_s, report)


async def result(jobs, run):
    outcome = await jobs.process(run)
    outcome.content.seek(0)
    return outcome, outcome.content.read()


async def test_progress_grows_with_every_sentence(speech):
    seen = []
    run = job(report=lambda **progress: seen.append(SimpleNamespace(**progress)))
    await SpeechJobs(speech().processor).process(run)
    done = [progress.done_characters for progress in seen]
    assert done == sorted(done)
    assert len(set(done)) >= 18
    assert done[-1] == run.record.characters
    assert [progress.done_s for progress in seen] == sorted(progress.done_s for progress in seen)
    # About how long all of it will be: as much as is made at least, and in the end just that.
    assert all(progress.duration_s >= progress.done_s for progress in seen)
    assert seen[-1].duration_s == pytest.approx(seen[-1].done_s)


@pytest.mark.slow("speaks and encodes chapters")
async def test_every_kind_of_file_has_all_samples(speech):
    """Lossless files have those of PCM and state their length; lossy ones have a frame or two more. Chapters of
    audiobooks begin with the first sound of their text, and end where the next begins."""
    jobs = SpeechJobs(speech().processor)
    pcm = np.frombuffer((await result(jobs, job()))[1], "<i2")
    for audio_format in (SpeechFormat.WAV, SpeechFormat.FLAC):
        outcome, content = await result(jobs, job(changed(response_format=audio_format)))
        assert outcome.duration_s == len(pcm) / SPEECH_RATE
        assert soundfile.info(io.BytesIO(content)).frames == len(pcm)
        assert np.array_equal(soundfile.read(io.BytesIO(content), dtype="int16")[0], pcm)
    for audio_format in (SpeechFormat.MP3, SpeechFormat.M4B):
        outcome, content = await result(jobs, job(changed(response_format=audio_format)))
        with av.open(io.BytesIO(content)) as container:
            marks = container.chapters()
            decoded_s = sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))
        assert -0.001 < decoded_s - outcome.duration_s < 0.2
        assert [mark["metadata"]["title"] for mark in marks] == [chapter.title for chapter in CHAPTERS]
        assert [mark["end"] for mark in marks[:-1]] == [mark["start"] for mark in marks[1:]]
        assert (marks[0]["start"], marks[-1]["end"] / 1000) == (0, pytest.approx(outcome.duration_s, abs=0.001))
        for mark in marks[1:]:
            start = mark["start"] * SPEECH_RATE // 1000
            assert not pcm[start - SPEECH_RATE : start - 100].any()  # a second of silence
            assert pcm[start : start + 2_400].any()


async def test_lost_work_is_done_again(speech):
    """A sentence that fails once is spoken by the next attempt, which leaves no trace; one that always fails ends the
    job."""
    _, whole = await result(SpeechJobs(speech().processor), job())
    once = SpeechRule(call=11, fault=Fault.RAISE, after_blocks=2)
    assert (await result(SpeechJobs(speech(once).processor), job()))[1] == whole
    always = SpeechRule(text="about bees", fault=Fault.RAISE)
    with pytest.raises(SpeechFailed):
        await SpeechJobs(speech(always).processor).process(job())


async def test_a_job_has_a_time_limit_of_its_own(speech):
    """The limit is longer than a request's, and applies however much is spoken."""
    jobs = SpeechJobs(speech(SpeechRule(call=5, fault=Fault.HANG, hang_s=0.6), timeout_s=0.3).processor)
    await jobs.process(job())
    jobs = SpeechJobs(speech(SpeechRule(call=5, fault=Fault.HANG, hang_s=1.0)).processor)
    with pytest.raises(DeadlineExceeded):
        await jobs.process(job(timeout_s=0.3))


async def test_a_text_says_what_it_will_take():
    """Samples and the file, which is as large where nothing is lost; at twice the speed half of it."""
    options = {}, {"response_format": SpeechFormat.MP3}, {"speed": 2.0}
    pcm, mp3, fast = (expected_bytes(changed(**fields), CHAPTERS) for fields in options)
    assert fast == pytest.approx(pcm / 2, abs=1)
    assert pcm / 2 < mp3 < 0.6 * pcm


async def test_the_language_is_found_by_a_bounded_beginning():
    text = beginning(tuple(Chapter(text=letter * 8_000) for letter in "abcd"))
    assert text == "a" * 8_000 + "b" * 8_000 + "c" * 4_000


async def test_parts_have_every_sentence_once_in_its_place(monkeypatch):
    """Each is part of one chapter and about two minutes long; `begin` counts the characters of all chapters."""
    monkeypatch.undo()
    long = Chapter(title="Long", text="This is a sentence of some length, which ends here.  \n" * 200)
    chapters = (Chapter(text="  Short. "), long, Chapter(text="  Short. "))
    parts = text_parts(chapters, "en")
    whole = "".join(chapter.text for chapter in chapters)
    found = [(whole[part.begin :][span.start : span.end], span.text) for part in parts for span in part.spans]
    assert found == [(span.text, span.text) for one in chapters for span in sentences(one.text, "en")]
    assert [part.chapter for part in parts] == [0, *[1] * (len(parts) - 2), 2]
    assert all(60 < sum(spoken_s(span.text) for span in part.spans) < 180 for part in parts[1:-2])
