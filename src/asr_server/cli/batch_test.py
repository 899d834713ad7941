"""A batch over a hearer that fails on command."""

import asyncio
import io
from pathlib import Path

import pytest

from asr_server.cli.backend import BackendResult, Duration, JobAccepted, Progress, RequestOptions
from asr_server.cli.batch import Batch
from asr_server.cli.failure import Exit, Failure, NoServer
from asr_server.cli.progress import ProgressBars
from asr_server.cli.sinks import FileSink, StdoutSink
from asr_server.cli.sources import Source


class _Scripted:
    """Answers with the recording's own bytes; `fail` is raised for recordings that hold it."""

    def __init__(self, **failures):
        self.failures = failures
        self.under_way = self.most = 0
        self.left = self.ended = 0
        self.forgotten = []
        self.two = asyncio.Event()  # set when two are under way

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def forget(self, job):
        self.forgotten.append(job)

    async def hear(self, recording, wish):
        text = recording.read().decode()
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.under_way == 2:
            self.two.set()
        try:
            yield JobAccepted(f"job_{text}")
            yield Duration(2.0)
            await asyncio.sleep(3600 if text == "forever" else 0.001)
            if text in self.failures:
                raise self.failures[text]
            yield Progress(1.0)
            yield BackendResult(text, ("worth knowing",) if text == "remarkable" else ())
            self.ended += 1
        finally:
            self.under_way -= 1
            self.left += 1


def _sources(tmp_path, *texts):
    paths = [tmp_path / f"{i}" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [Source(path, Path(path.name)) for path in paths]


def _batch(hearer, sources, **more):
    out = io.BytesIO()
    return Batch(
        "transcribe", hearer, StdoutSink(sources, out), ProgressBars(wanted=False), RequestOptions(), **more
    ), out


async def test_what_fails_fails_alone_and_is_told_in_one_line(tmp_path, capsys):
    """The rest is delivered; the exit code says that not all is."""
    sources = _sources(tmp_path, "one", "bad", "two")
    batch, out = _batch(_Scripted(bad=Failure("invalid_audio", "No audio.")), sources)
    assert await batch.run(sources, jobs=2) is Exit.FAILED
    assert out.getvalue().decode().count("==>") == 2
    assert capsys.readouterr().err == f"asr-server transcribe: {sources[1].name}: invalid_audio: No audio.\n"


async def test_what_is_heard_is_heard_to_its_end(tmp_path):
    """Whoever is left in the middle counts a caller who gave up."""
    hearer, sources = _Scripted(), _sources(tmp_path, "one", "two")
    batch, _ = _batch(hearer, sources)
    assert await batch.run(sources, jobs=2) is Exit.DONE
    assert hearer.ended == 2


async def test_a_job_whose_result_cannot_be_printed_is_named(tmp_path, capsys):
    """The server keeps it; standard output takes no more."""

    class Full(io.BytesIO):
        def flush(self):
            raise OSError(28, "No space left on device")

    hearer, sources = _Scripted(), _sources(tmp_path, "one")
    batch = Batch("transcribe", hearer, StdoutSink(sources, Full()), ProgressBars(wanted=False), RequestOptions())
    with pytest.raises(OSError, match="No space"):
        await batch.run(sources, jobs=1)
    assert "asr-server job job_one" in capsys.readouterr().err
    assert not hearer.forgotten


@pytest.mark.parametrize("jobs", [1, 3, 50])
async def test_no_more_than_the_wished_number_are_under_way(tmp_path, jobs):
    """And no fewer, while there is work."""
    sources = _sources(tmp_path, *["text"] * 10)
    hearer = _Scripted()
    batch, _ = _batch(hearer, sources)
    assert await batch.run(sources, jobs) is Exit.DONE
    assert hearer.most == min(jobs, 10)


async def test_without_a_server_the_rest_is_left_but_what_is_done_is_kept(tmp_path):
    """Also what waited for its turn to be printed."""
    sources = _sources(tmp_path, "forever", "done", "gone", "never")
    hearer = _Scripted(gone=NoServer("no server"))
    batch, out = _batch(hearer, sources)
    with pytest.raises(NoServer):
        await batch.run(sources, jobs=2)
    assert out.getvalue().decode() == f"==> {sources[1].name} <==\ndone\n"
    assert hearer.under_way == 0


async def test_cancelling_closes_what_is_under_way(tmp_path):
    """So that whoever hears stops working."""
    sources = _sources(tmp_path, "forever", "forever", "forever")
    hearer = _Scripted()
    batch, _ = _batch(hearer, sources)
    task = asyncio.create_task(batch.run(sources, jobs=2))
    await hearer.two.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (hearer.under_way, hearer.left) == (0, 2)


async def test_what_is_left_says_how_its_job_is_found_again(tmp_path, capsys):
    """One line for each that the server goes on with, and none for what is done."""
    sources = _sources(tmp_path, "done", "forever")
    batch, _ = _batch(hearer := _Scripted(), sources)
    task = asyncio.create_task(batch.run(sources, jobs=2))
    await hearer.two.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    told = capsys.readouterr().err
    assert told == (f"asr-server transcribe: {sources[1].name}: goes on as a job: asr-server job job_forever --wait\n")


@pytest.mark.parametrize("quiet", [False, True])
async def test_remarks_are_told_unless_quiet(tmp_path, capsys, quiet):
    """They are no failures."""
    sources = _sources(tmp_path, "remarkable")
    batch, _ = _batch(_Scripted(), sources, quiet=quiet)
    assert await batch.run(sources, jobs=1) is Exit.DONE
    assert ("worth knowing" in capsys.readouterr().err) is not quiet


async def test_a_job_is_forgotten_when_its_result_is_delivered_and_not_before(tmp_path, capsys):
    """What could not be written is still there to be fetched."""
    sources = _sources(tmp_path, "one", "two")
    hearer = _Scripted()
    places = {sources[0]: tmp_path / "a.txt", sources[1]: tmp_path / "b.txt"}
    filed = FileSink(places, force=False)
    filed.check = lambda source: places[sources[1]].write_text("in the way")
    batch = Batch("subtitles", hearer, filed, ProgressBars(wanted=False), RequestOptions())
    assert await batch.run(sources, jobs=1) is Exit.FAILED
    assert hearer.forgotten == ["job_one"]
    assert "asr-server job job_two --result" in capsys.readouterr().err
