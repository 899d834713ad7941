"""`/metrics` of a real server: what was done is what was counted, and asking never waits."""

import http.client
import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from asr_server.net.request_log import NO_ROUTE
from asr_server_fake.script import FakeScript, Fault, Rule
from E2Etest.drive import recordings
from E2Etest.drive.process import until
from E2Etest.drive.session import act, data, finals, open_session, pieces, upto_flush
from E2Etest.drive.wire import form
from E2Etest.exposition import DOCUMENTED, LABEL_VALUES, moved, scrape, total, value

pytestmark = [pytest.mark.timeout(300)]

ROUTE = "/v1/audio/transcriptions"
AUDIO_S = len(recordings.samples()) / 16_000


@pytest.fixture(scope="module")
def server(start):
    slow = FakeScript(load_s=1.0, step_s=0.02)
    with start(script=slow, IDLE_TIMEOUT="0", WS_RESUME_S="0", MAX_AUDIO_S="300") as server:
        parts = _server_timing(server.transcribe(recordings.sample()[0]))
        assert 100 < parts["load"] < parts["total"]  # the first request says what it waited for
        yield server


def _settled(server, condition):
    """A scrape of which `condition` holds: what is counted behind an answer may come a moment after it."""
    return until(lambda: (found := scrape(server)) and condition(found) and found, 120)


def _grown(server, before, requests=1):
    """How much each figure grew when that many requests are counted."""
    wanted = total(before, "asr_http_requests_total", route=ROUTE) + requests
    after = _settled(server, lambda series: total(series, "asr_http_requests_total", route=ROUTE) == wanted)
    return moved(before, after)


def _server_timing(answer):
    header = answer.headers["server-timing"]
    assert re.fullmatch(r"[a-z]+;dur=[\d.]+(, [a-z]+;dur=[\d.]+)*", header), header
    return {name: float(ms) for name, ms in re.findall(r"([a-z]+);dur=([\d.]+)", header)}


def test_one_file_is_counted_once_everywhere(server):
    """A request, its audio, its span, its tokens; and its answer says where the time went, as its log line does."""
    before, began_s = scrape(server), time.monotonic()
    answer = server.transcribe(recordings.sample()[0])
    grew = _grown(server, before)
    assert grew("asr_http_requests_total", route=ROUTE, method="POST", status="2xx") == 1
    assert grew("asr_http_request_seconds_count", route=ROUTE) == 1
    took_s = grew("asr_http_request_seconds_sum", route=ROUTE)
    assert _server_timing(answer)["total"] / 1000 <= took_s + 0.001 < time.monotonic() - began_s
    assert grew("asr_recording_audio_seconds_total") == pytest.approx(AUDIO_S)
    assert grew("asr_decoded_audio_seconds_total") == pytest.approx(AUDIO_S)
    assert grew("asr_recording_covered_seconds_total") == pytest.approx(AUDIO_S, abs=0.001)
    assert grew("asr_recording_covered_seconds_total", coverage="words") > 1
    assert grew("asr_repaired_segments_total") == 0
    assert grew("asr_engine_jobs_total") == grew("asr_engine_jobs_total", priority="interactive", end="done") == 1
    assert grew("asr_queue_wait_seconds_count", priority="interactive") == 1
    assert 0 < grew("asr_engine_audio_seconds_total", priority="interactive") <= AUDIO_S
    assert grew("asr_engine_tokens_total", kind="generated") >= len(recordings.sample()[1].split())
    # A row alone: each step is a batch of one.
    assert grew("asr_engine_step_seconds_count") == grew("asr_engine_batch_rows_sum") > 1
    assert grew("asr_engine_step_seconds_sum") <= grew("asr_engine_job_seconds_sum") + 0.1
    assert grew("asr_first_text_seconds_count") == grew("asr_errors_total") == grew("asr_model_loads_total") == 0
    parts = _server_timing(answer)
    assert {"decode", "queue", "infer", "load", "total"} <= set(parts)
    assert parts["load"] == 0
    line = next(row for row in server.log().splitlines() if answer.headers["x-request-id"] in row)
    for name in set(parts) - {"total"}:
        assert f" {name}_ms={parts[name]}" in line


def test_a_stream_has_a_first_text(server):
    """One observation for one stream, within the request."""
    before = scrape(server)
    assert server.transcribe(recordings.sample()[0], stream="true").status_code == 200
    grew = _grown(server, before)
    assert grew("asr_first_text_seconds_count", route=ROUTE) == 1
    assert 0 < grew("asr_first_text_seconds_sum", route=ROUTE) <= grew("asr_http_request_seconds_sum", route=ROUTE)


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_caller_that_leaves_is_counted_as_one(server, stream):
    """Of the request and of its span; no figure of finished work moves."""
    before = scrape(server)
    body = form(recordings.wav(np.tile(recordings.samples(), 5)), stream=stream)
    caller = http.client.HTTPConnection("127.0.0.1", server.port)
    caller.request("POST", ROUTE, body, {"Content-Type": "multipart/form-data; boundary=b"})
    server.wait_for(lambda health: health["queue"]["running"] > 0)
    caller.close()
    after = _settled(server, lambda s: moved(before, s)("asr_errors_total", code="request_cancelled") >= 1)
    after = _settled(server, lambda s: value(s, "asr_engine_rows") == 0 and total(s, "asr_queue_jobs") == 0)
    grew = moved(before, after)
    assert grew("asr_errors_total") == grew("asr_errors_total", surface="http", code="request_cancelled") == 1
    assert grew("asr_engine_jobs_total", end="left") >= 1
    assert grew("asr_recording_audio_seconds_total") == 0
    assert value(after, "asr_admission_held_seconds") == 0


def test_one_live_session_is_counted_word_by_word(server):
    """Its opening, its audio, each utterance, each partial, each committed word, its end; and one log line."""
    speech = np.concatenate([recordings.samples(), np.zeros(14_400, np.int16)])
    before = scrape(server)
    with open_session(server) as socket:
        for piece in pieces(data(speech), 6_400):
            socket.send(piece)
            time.sleep(0.02)
        act(socket, "flush")
        messages = upto_flush(socket)
        name = socket.hello["session_id"].partition(".")[0]
        assert value(scrape(server), "asr_live_sessions") == 1
    after = _settled(server, lambda s: value(s, "asr_live_sessions") == 0)
    grew = moved(before, after)
    said = finals(messages)
    assert said
    assert grew("asr_live_sessions_opened_total") == 1
    assert grew("asr_live_sessions_ended_total") == grew("asr_live_sessions_ended_total", outcome="closed") == 1
    assert grew("asr_live_audio_seconds_total") == pytest.approx(len(speech) / 16_000)
    endings = [ending for *_, ending in said]
    assert {e: grew("asr_live_utterances_total", ending=e) for e in endings} == {e: endings.count(e) for e in endings}
    assert grew("asr_live_utterances_total") == grew("asr_live_final_seconds_count") == len(said)
    # Of partials that the client was too slow for it got the last.
    assert grew("asr_live_partials_total") >= sum(m["is_partial"] for m in messages)
    assert grew("asr_live_commit_lag_seconds_count") == sum(len(text.split()) for text, *_ in said)
    jobs = sum(grew("asr_engine_jobs_total", priority=priority, end="done") for priority in ("final", "partial"))
    assert jobs >= len(said)
    assert grew("asr_http_requests_total", route="/ws/transcribe") == 0
    # The line is written after the session is counted.
    server.wait_for(lambda _: f"session={name} " in server.log())
    (line,) = [row for row in server.log().splitlines() if " live session " in row and f"session={name} " in row]
    shown = dict(pair.split("=", 1) for pair in line.split() if "=" in pair)
    assert shown["outcome"] == "closed"
    assert float(shown["audio_s"]) == pytest.approx(len(speech) / 16_000, abs=0.01)
    assert int(shown["utterances"]) == len(said)
    assert int(shown["partials"]) == grew("asr_live_partials_total")
    assert 0 <= int(shown["commit_p50_ms"]) <= int(shown["commit_p95_ms"])


def test_a_server_exposes_the_metrics_of_the_page(server):
    """The names, types, help texts and labels are those in docs/run/observability.md."""
    before = scrape(server)
    for audio in (recordings.sample()[0], b"this is no audio at all"):
        server.transcribe(audio, stream="true")
    _grown(server, before, requests=2)
    text = server.client.get("/metrics").text
    meanings, kinds = (dict(re.findall(rf"^# {part} (asr_\w+) (.+)$", text, re.MULTILINE)) for part in ("HELP", "TYPE"))
    assert meanings == {name: metric.meaning for name, metric in DOCUMENTED.items()}
    assert kinds == {name: metric.kind for name, metric in DOCUMENTED.items()}
    seen = {}
    for name, labels in scrape(server):
        if not name.startswith("process_"):
            metric = name if name in DOCUMENTED else re.sub(r"_(bucket|sum|count)$", "", name)
            seen[metric] = {label for label, _ in labels} - {"le"}
    labels = {name: metric.labels for name, metric in DOCUMENTED.items()}
    del labels["asr_engine_process_ends_total"]  # no engine process has run
    assert seen == labels


def test_labels_come_from_closed_sets(server):
    """Requests add no series, except one for each route of the server."""
    server.client.get("/canary-path")
    server.client.get("/v1/jobs/canary-job")
    server.client.put("/health")
    server.client.request("OPTIONS", "/canary-path")
    routes = {NO_ROUTE, *server.client.get("/openapi.json").json()["paths"]}
    known = {**LABEL_VALUES, "route": routes, "model": {model["id"] for model in server.health()["models"]}}
    for name, labels in scrape(server):
        if name.startswith("asr_") and name != "asr_build_info":
            assert [label for label, found in labels if label != "le" and found not in known[label]] == [], name
    assert "canary" not in server.client.get("/metrics").text


@pytest.mark.slow("waits for time limits")
def test_a_hanging_step_turns_live_false_and_a_load_does_not(start):
    """The bound is far below the time of a load. When the step comes back, so does the server."""
    slow = FakeScript(load_s=1.5, rules=(Rule(call=1, fault=Fault.HANG, hang_s=2.0),))
    with start(script=slow, ENGINE_HANG_S="0.5") as server, ThreadPoolExecutor(1) as pool:
        work = pool.submit(server.transcribe, recordings.sample()[0])
        seen = []
        with httpx.Client(base_url=server.base, timeout=60) as other:
            while not work.done():
                reason = other.get("/livez").json()["reason"]
                seen.append((reason, 'asr_model_state{state="loading"} 1.0' in other.get("/metrics").text))
                time.sleep(0.05)
        assert work.result().json()["text"] == recordings.sample()[1]
        assert {reason for reason, is_loading in seen if is_loading} == {""}
        assert {reason for reason, _ in seen} == {"", "the engine thread does not move"}
        assert server.client.get("/livez").status_code == 200
        assert server.health()["status"] == "ok"
