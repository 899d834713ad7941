"""A batch over a scripted backend."""

import argparse
import asyncio
import io
import signal
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from asr_server.cli.batch import RecordingBatch, Totals, notes
from asr_server.cli.failure import Exit
from asr_server.cli.formats import Format, answer_options
from asr_server.cli.progress import Event
from asr_server.cli.recording_files import FileSink, RecordingSource, StdoutSink
from asr_server.recordings.requests import Result, SubtitleRequest, TranscriptionRequest


class _Scripted:
    def __init__(self):
        self.running = self.max_running = 0
        self.forgotten = []
        self.two = asyncio.Event()  # set when two recordings are being processed

    async def forget(self, job):
        self.forgotten.append(job)

    async def answer_to(self, recording, request, show):
        text = recording.read().decode()
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        if self.running == 2:
            self.two.set()
        if text == "stop":
            asyncio.get_running_loop().call_later(0.3, signal.raise_signal, signal.SIGINT)
        for event in (Event(job=f"job_{text}"), Event(duration_s=2.0), Event(done_s=1.0)):
            show(event)
        await asyncio.sleep(3600 if text == "forever" else 0.001)
        self.running -= 1
        return Result(text.encode(), "text/plain", untranslated=3 if text == "noteworthy" else None, duration_s=2.0)


def _sources(tmp_path, *texts):
    paths = [tmp_path / f"{i}" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [RecordingSource(path, Path(path.name)) for path in paths]


def _batch(sources, sink=None, formats=(Format.TEXT,), **given):
    """A batch, and what it prints; the request is for its formats."""
    given = {"quiet": True, "server": None, "api_key_file": None, "jobs": 2} | given
    request, out = TranscriptionRequest(**answer_options(formats)), io.BytesIO()
    parsed = argparse.Namespace(**given)
    return RecordingBatch("transcribe", parsed, request, formats, sink or StdoutSink(sources, out)), out


def test_ctrl_c_keeps_what_is_finished_and_says_so(tmp_path):
    """Also a result that waited for the one before it."""
    sources = _sources(tmp_path, "forever", "stop")
    batch, out = _batch(sources)
    with pytest.raises(KeyboardInterrupt, match="stopped: 1 of 2 recordings are finished and kept"):
        batch.process(sources, nullcontext(_Scripted()))
    assert out.getvalue().decode().split()[-1] == "stop"
    assert "before a recording was finished, and no file" in Totals().kept(2)


async def test_a_job_whose_result_cannot_be_printed_is_named(tmp_path, capsys):
    backend, sources = _Scripted(), _sources(tmp_path, "one")
    full = Mock(flush=Mock(side_effect=OSError(28, "No space left on device")))
    batch, _ = _batch(sources, StdoutSink(sources, full))
    with pytest.raises(OSError, match="No space"):
        await batch.run(sources, nullcontext(backend))
    assert "/v1/jobs/job_one/result" in capsys.readouterr().err
    assert not backend.forgotten


@pytest.mark.parametrize(("jobs", "quiet"), [(3, True), (50, False)])
async def test_so_many_recordings_run_at_a_time(tmp_path, capsys, jobs, quiet):
    """Neither more nor fewer run while there is work. Notes are no failures, and are printed unless quiet."""
    sources, backend = _sources(tmp_path, *["noteworthy"] * 10), _Scripted()
    batch, _ = _batch(sources, jobs=jobs, quiet=quiet)
    assert await batch.run(sources, nullcontext(backend)) is Exit.DONE
    assert backend.max_running == min(jobs, 10)
    assert ("3 lines could not be translated" in capsys.readouterr().err) is not quiet


@pytest.mark.parametrize(
    ("texts", "server", "formats", "note"),
    [
        (("done", "forever"), None, (Format.TEXT,), ""),
        (("forever", "forever"), "http://asr.example:8202", (Format.SRT, Format.VTT), " (its result is srt)"),
    ],
)
async def test_the_jobs_of_a_cancelled_batch_go_on_and_are_named(tmp_path, capsys, texts, server, formats, note):
    """One line for each recording that is not done: a command that asks the same server, with the same key."""
    sources, key = _sources(tmp_path, *texts), tmp_path / "my key.txt"
    key.write_text("secret")
    given = {"server": server, "api_key_file": server and key}
    batch, _ = _batch(sources, formats=formats, **given)
    task = asyncio.create_task(batch.run(sources, nullcontext(backend := _Scripted())))
    await backend.two.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    command = f"curl {server or 'http://127.0.0.1:8100'}/v1/jobs/job_forever/result"
    command += f" -H \"Authorization: Bearer $(cat '{key}')\"" if server else ""
    left = [source.name for source, text in zip(sources, texts, strict=True) if text == "forever"]
    lines = [f"asr-server transcribe: {name}: goes on as a job: {command}{note}\n" for name in left]
    assert sorted(capsys.readouterr().err.splitlines(keepends=True)) == lines


async def test_a_job_is_removed_after_its_result_is_delivered(tmp_path, capsys):
    sources, backend = _sources(tmp_path, "one", "two"), _Scripted()
    filed = FileSink(
        {one: {Format.TEXT: tmp_path / name} for one, name in zip(sources, ("a.txt", "b.txt"), strict=True)}
    )
    filed.is_done = lambda source: not (tmp_path / "b.txt").write_text("in the way")
    batch, _ = _batch(sources, filed, jobs=1)
    assert await batch.run(sources, nullcontext(backend)) is Exit.FAILED
    assert backend.forgotten == ["job_one"]
    assert "/v1/jobs/job_two/result" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "source", "count"), [("accurate", "aligned", 0), ("accurate", "mixed", 1), ("fast", "estimated", 0)]
)
def test_estimated_times_are_noted_only_where_aligned_ones_were_requested(mode, source, count):
    assert len(notes(SubtitleRequest(mode=mode), Result(b"", "text/plain", time_source=source))) == count
