"""Faults of the engine: they hurt their own row, work that is late is not done, and the next request is served."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from asr_server_fake.script import FakeScript, Fault, Rule
from E2Etest.drive import recordings
from E2Etest.drive.process import at_rest, refusal, until
from E2Etest.drive.wire import form, post
from E2Etest.exposition import moved, scrape

HANG, WRONG = "hang here", "go wrong"


@pytest.fixture(scope="module")
def server(scripted_server):
    scripted_server.transcribe(recordings.sample()[0])
    return scripted_server


@contextmanager
def _hanging(server, file, *rules, at="step"):
    """The engine hangs in the first request whose prompt asks for it, until the block ends; other rules hold too."""
    hang = Rule(context=HANG, fault=Fault.HANG, at=at, after_tokens=3 * (at == "step"), times=1, hang_file=file)
    server.replace_script(FakeScript(rules=(hang, *rules)))
    try:
        yield lambda: until(file.exists)
    finally:
        file.unlink(missing_ok=True)
        server.wait_for(at_rest)
        server.replace_script(FakeScript())


@pytest.mark.guarantee("queue")
@pytest.mark.parametrize(
    ("where", "fault", "at", "tokens", "told"),
    [
        ("admission", Fault.RAISE, "admission", 0, (500, "transcription_failed")),
        ("prefill", Fault.RAISE, "step", 0, (500, "transcription_failed")),
        ("decoding", Fault.RAISE, "step", 3, (500, "transcription_failed")),
        ("memory in prefill", Fault.MEMORY, "step", 0, (503, "engine_out_of_memory")),
        ("memory while decoding", Fault.MEMORY, "step", 3, (503, "engine_out_of_memory")),
    ],
)
def test_a_fault_hurts_its_own_row(server, sample, tmp_path, note, where, fault, at, tokens, told):
    """Its request gets the error with its code; the rows beside it and the next request get their words."""
    prompts = ["", "", WRONG, "", ""]
    rule = Rule(context=WRONG, fault=fault, at=at, after_tokens=tokens)
    with ThreadPoolExecutor(6) as pool, _hanging(server, tmp_path / "hang", rule) as hangs:
        first = pool.submit(server.transcribe, sample[0], prompt=HANG)
        hangs()
        works = [pool.submit(server.transcribe, sample[0], prompt=prompt) for prompt in prompts]
        server.wait_for(lambda health: health["queue"]["interactive"] == len(prompts))
        (tmp_path / "hang").unlink()
        answers = [work.result() for work in [*works, first]]
    at_fault = answers.pop(2)
    assert refusal(at_fault)[:2] == told
    assert [answer.json().get("text") for answer in answers] == [sample[1]] * 5
    assert server.transcribe(sample[0]).json()["text"] == sample[1]
    assert server.client.get("/readyz").status_code == 200
    note(f"fault in {where} behind a hanging row: the 5 others were served")


def test_an_engine_that_failed_is_not_alive_and_says_so_to_everybody(start, sample, tmp_path):
    """Who runs, who waits and who comes later gets one code; `/livez` is 503 within a second, with the reason."""
    fatal = Rule(context=WRONG, fault=Fault.FATAL)
    with start() as server, ThreadPoolExecutor(6) as pool:
        with _hanging(server, tmp_path / "hang", fatal) as hangs:
            works = [pool.submit(server.transcribe, sample[0], prompt=HANG)]
            hangs()
            works += [pool.submit(server.transcribe, sample[0], prompt=prompt) for prompt in (WRONG, "", "")]
            server.wait_for(lambda health: health["queue"]["interactive"] == 3)
            (tmp_path / "hang").unlink()
            began_s = time.monotonic()
            until(lambda: server.client.get("/livez").status_code == 503)
            assert time.monotonic() - began_s < 1.0
            answers = [work.result() for work in works] + [server.transcribe(sample[0])]
        assert {refusal(answer)[:2] for answer in answers} == {(503, "engine_failed")}
        assert "accelerator failed" in server.client.get("/livez").json()["reason"]
        assert server.client.get("/readyz").status_code == 503


@pytest.mark.guarantee("queue")
@pytest.mark.parametrize("at", ["admission", "step"])
def test_a_caller_that_leaves_a_hanging_engine_is_no_fault(server, sample, tmp_path, note, at):
    """It hangs up while its row hangs: whoever waits behind it is served, nothing is left or logged."""
    logged = len(server.log())
    with ThreadPoolExecutor(1) as pool:
        with _hanging(server, tmp_path / "hang", at=at) as hangs:
            with socket.create_connection(("127.0.0.1", server.port)) as caller:
                caller.sendall(post(form(sample[0], prompt=HANG)))
                hangs()
            stayer = pool.submit(server.transcribe, sample[0])
            until(lambda: "outcome=request_cancelled" in server.log()[logged:])
        assert stayer.result().json()["text"] == sample[1]
    assert "Traceback" not in server.log()[logged:]
    note(f"caller gone while its row hangs at {at}: the next was served")


@pytest.mark.slow("waits for time limits")
@pytest.mark.guarantee("deadlines")
def test_what_is_late_gets_504_at_its_deadline_and_never_runs(start, sample, tmp_path, measured, note):
    """What waits and what runs while the engine hangs; when it is free it does none of it."""
    limit_s, queued = 3.0, 8

    def late():
        began_s = time.monotonic()
        return server.transcribe(sample[0]), time.monotonic() - began_s - limit_s

    with start(REQUEST_TIMEOUT=str(limit_s)) as server, ThreadPoolExecutor(queued + 1) as pool:
        assert server.transcribe(sample[0]).status_code == 200
        before = scrape(server)
        with _hanging(server, tmp_path / "hang") as hangs:
            running = pool.submit(server.transcribe, sample[0], prompt=HANG)
            hangs()
            waited = [work.result() for work in [pool.submit(late) for _ in range(queued)]]
            answers = [running.result(), *(answer for answer, _ in waited)]
        assert {refusal(answer)[:2] for answer in answers} == {(504, "deadline_exceeded")}
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        grew = moved(before, scrape(server))
    kind = {"priority": "interactive"}
    # On a busy machine some are still being decoded at their deadline, and never come so far.
    assert 1 < grew("asr_engine_jobs_total", **kind, end="late") <= queued + 1
    # The one that hung, and the one that came when all had their answer.
    assert grew("asr_queue_wait_seconds_count", **kind) == 2
    assert grew("asr_engine_jobs_total", **kind, end="done") == 1
    assert grew("asr_errors_total") == grew("asr_errors_total", surface="http", code="deadline_exceeded") == queued + 1
    assert grew("asr_recording_audio_seconds_total") == pytest.approx(len(recordings.samples()) / 16_000)
    measured("late_ms", 1000 * max(after_s for _, after_s in waited))
    note(f"{queued} requests in the queue; none ran")


def test_health_and_metrics_do_not_wait_for_the_engine(server, scripted, sample):
    """They answer many times while it stands still in a step."""
    scripted(Rule(context=HANG, fault=Fault.HANG, hang_s=2.0))
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server.base) as other:
        work = pool.submit(server.transcribe, sample[0], prompt=HANG)
        server.wait_for(lambda health: health["queue"]["running"] > 0)
        answered = 0
        while not work.done():
            assert other.get("/health").status_code == other.get("/metrics").status_code == 200
            answered += 1
    assert answered > 5
