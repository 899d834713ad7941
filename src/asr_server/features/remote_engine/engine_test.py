"""The remote engine's own guarantees: the bytes that go over the wire, and the handling of a server's failures."""

import threading
import time
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from asr_server.core.errors import ModelUnavailable, Overloaded, TranscriptionFailed
from asr_server.engine.conftest import ends
from asr_server.engine.protocol import Finish, Utterance
from asr_server.features.remote_engine import conftest as wire
from asr_server.features.remote_engine.conftest import KEY, PATIENCE_S, Reply, ScriptedRemote
from asr_server.schedule.model import RowDone, RowFailed
from E2Etest.drive.procfs import until

TONE = (0.3 * np.sin(np.arange(24_000) / 9)).astype(np.float32)


@pytest.fixture
def engine_for(built):
    def make(server, **values):
        engine = built(**{"vllm_base_url": server.url, "max_batch": 4, **values})
        engine.load()
        return engine

    return make


def _answer(engine, utterance):
    (end,), _ = ends(engine, utterance)
    assert isinstance(end, RowDone), end.error
    return end.value


def _error(engine):
    (end,), _ = ends(engine, Utterance(TONE))
    assert isinstance(end, RowFailed), end
    return end.error


def test_the_server_gets_the_samples_and_every_field_that_counts(remote, engine_for):
    """The audio in 16 bits, the language by its code, the key; a seed only where something is drawn."""
    engine = engine_for(remote, vllm_api_key=KEY, model_id="owner/model")
    _answer(engine, Utterance(TONE, language="German", context="Anna, Bert", temperature=0.5, seed=7))
    _answer(engine, Utterance(TONE))
    first, second = remote.calls
    assert np.abs(first.samples / 32767 - TONE).max() < 1e-4
    assert first.headers["authorization"] == f"Bearer {KEY}"
    common = {"model": "owner/model", "response_format": "json", "stream": "true"}
    assert second.fields == {**common, "temperature": "0"}
    assert first.fields == {**common, "language": "de", "prompt": "Anna, Bert", "temperature": "0.5", "seed": "7"}


def test_vllm_gets_fields_of_its_own(engine_for):
    """vLLM's Qwen3-ASR is forced to a language by `to_language`; an answer may have as many tokens as one of ours."""
    with ScriptedRemote(wire.vllm, owner="vllm") as server:
        engine = engine_for(server)
        answer = _answer(engine, Utterance(TONE, language="German"))
        assert (answer.text, answer.language) == (server.calls[0].text, "German")
        fields = server.calls[0].fields
        assert (fields["model"], fields["to_language"], fields["max_completion_tokens"]) == ("served", "de", "60")
        detected = _answer(engine, Utterance(TONE))
        assert (detected.text, detected.language, detected.prompt_tokens) == (answer.text, "English", 40)
        cut = {"choices": [{"delta": {"content": "turn"}, "finish_reason": "length"}]}
        server.script = lambda call: wire.events(cut)
        assert _answer(engine, Utterance(TONE)).finish is Finish.BUDGET


def test_servers_that_do_not_stream_answer_too(engine_for):
    """A server that refuses the field gets it once, unless it refuses the recording in every form."""

    def strict(call):
        return wire.refusal(422) if "stream" in call.fields else wire.whole(call)

    for script, streams in ((wire.whole, [True, True]), (strict, [True, False, False])):
        with ScriptedRemote(script) as server:
            engine = engine_for(server)
            for _ in range(2):
                assert _answer(engine, Utterance(TONE)).text == server.calls[0].text
            assert ["stream" in call.fields for call in server.calls] == streams
    with ScriptedRemote(lambda call: wire.refusal(400) if call.number < 2 else wire.openai(call)) as server:
        engine = engine_for(server)
        _error(engine)
        _answer(engine, Utterance(TONE))
        assert ["stream" in call.fields for call in server.calls] == [True, False, True]


def test_text_arrives_while_it_is_written(remote, engine_for):
    release = threading.Event()

    def slow(call):
        reply = wire.openai(call)
        return replace(reply, parts=(part for n, part in enumerate(reply.parts) if not n or release.wait(PATIENCE_S)))

    remote.script = slow
    engine = engine_for(remote)
    engine.admit(1, Utterance(TONE, stream=True))
    found = []
    until(lambda: found.extend(engine.step()) or found)
    assert found[0].value.text == remote.calls[0].text.split()[0]
    release.set()
    until(lambda: found.extend(engine.step()) or isinstance(found[-1], RowDone))
    assert "".join(each.value.text for each in found[:-1]) == found[-1].value.text == remote.calls[0].text


def test_words_that_stand_are_kept_whatever_the_server_says(remote, engine_for):
    """If the server has changed its mind, what follows comes from the place in its answer that fits best."""
    engine = engine_for(remote)
    kept = tuple(map(ord, "turn on the kitchen lights"))
    for said, more in (("turn on the chicken lights please", " please"), ("turn on", ""), ("", "")):
        remote.script = lambda call, said=said: wire.events({"type": "transcript.text.done", "text": said})
        answer = _answer(engine, Utterance(TONE, prefix=kept))
        assert answer.text == f"turn on the kitchen lights{more}"
        assert answer.ids[: len(kept)] == kept


def test_an_answer_that_repeats_itself_is_ended(remote, engine_for):
    """This holds for scripts without blanks too. The stream is closed, and the loop's text stays once."""
    engine = engine_for(remote)
    for text, kept in (("so " + "very " * 4_000, "so very"), ("好" + "的" * 4_000, "好的")):
        deltas = [{"type": "transcript.text.delta", "delta": text[at : at + 50]} for at in range(0, len(text), 50)]
        remote.script = lambda call, deltas=deltas: wire.events(*deltas, pause_s=0.01)
        answer = _answer(engine, Utterance(np.tile(TONE, 8)))
        assert (answer.text, answer.finish) == (kept, Finish.LOOP)
    until(lambda: remote.broken == 2)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_when_it_says(remote, engine_for, status, monkeypatch):
    """If it stays busy, the caller gets its status and Retry-After: at most 30 seconds, one if it names none."""
    asked_s = []

    def script(call):
        asked_s.append(time.monotonic())
        return wire.refusal(status, retry_after=str(1 - call.number)) if call.number < 2 else wire.openai(call)

    remote.script = script
    engine = engine_for(remote)
    assert _answer(engine, Utterance(TONE)).text == remote.calls[0].text
    assert asked_s[1] - asked_s[0] >= 1.0
    monkeypatch.setattr("asr_server.features.remote_engine.endpoint._PATIENCE_S", {429: 0.25, 503: 0.25})
    if status == 503:
        remote.script = lambda call: wire.refusal(503, retry_after="0")
        assert isinstance(_error(engine), ModelUnavailable)
        assert not engine.loaded
        assert len(remote.calls) <= 6  # a tenth of a second lies between two requests, whatever the server asks for
        return
    for asked, told_s in (("", 1), ("0", 1), ("7", 7), ("3600", 30), ("Fri, 31 Dec 1999 23:59:59 GMT", 1)):
        remote.script = lambda call, asked=asked: wire.refusal(429, asked)
        assert (type(error := _error(engine)), error.retry_after_s) == (Overloaded, told_s)


@pytest.mark.parametrize(
    ("reply", "kind", "word"),
    [
        (wire.refusal(401), ModelUnavailable, "VLLM_API_KEY"),
        (wire.refusal(404), ModelUnavailable, "MODEL_ID"),
        (wire.refusal(502), ModelUnavailable, "502"),
        (wire.refusal(500), TranscriptionFailed, "failed"),
        (wire.refusal(302), TranscriptionFailed, "refused this audio (302)"),
        (Reply([b"<html>"]), TranscriptionFailed, "no transcription"),
        (Reply([b"x" * 2_000_000]), TranscriptionFailed, "too long"),
        (wire.events({"error": {"message": "secret"}}), TranscriptionFailed, "failed"),
        (wire.events({"type": "transcript.text.delta", "delta": "turn"}, done=False), TranscriptionFailed, "broke off"),
        (wire.events([]), TranscriptionFailed, "no transcription"),
    ],
)
def test_a_failure_is_that_of_its_row(remote, engine_for, reply, kind, word):
    """The others go on, and the message has nothing of what the server said."""
    remote.script = lambda call: reply if call.fields.get("prompt") else wire.openai(call)
    engine = engine_for(remote)
    (failed, done), _ = ends(engine, Utterance(TONE, context="fail"), Utterance(TONE))
    assert (type(failed.error), type(done), engine.free_slots) == (kind, RowDone, 4)
    assert word in failed.error.message
    assert "secret" not in failed.error.message


def test_a_dropped_row_closes_its_request(remote, engine_for):
    """The row may be in its answer or wait for its turn at the server."""
    engine = engine_for(remote)
    words = [{"type": "transcript.text.delta", "delta": f" {number}"} for number in range(2_000)]
    remote.script = lambda call: wire.events(*words, pause_s=0.01)
    engine.admit(1, Utterance(TONE))
    until(lambda: list(engine.step()))
    engine.drop(1)
    until(lambda: remote.broken == 1)
    remote.script = lambda call: wire.refusal(429, retry_after="1")
    engine.admit(2, Utterance(TONE))
    until(lambda: len(remote.calls) == 2)
    engine.drop(2)
    assert not list(engine.step())


def test_an_answer_is_never_that_of_a_dropped_row_with_the_same_key(remote, engine_for):
    """When the first row is dropped, its outcomes may still be queued."""
    remote.script = wire.whole
    engine = engine_for(remote)
    engine.admit(0, Utterance(TONE))
    until(lambda: remote.calls)
    time.sleep(0.3)
    engine.drop(0)
    assert _answer(engine, Utterance(TONE[:12_000])).text == remote.calls[1].text != remote.calls[0].text


def test_a_connection_that_broke_is_tried_again(remote, engine_for):
    """A pooled one, which the server had closed meanwhile; not once text has come."""
    engine = engine_for(remote)
    remote.script = lambda call: Reply([], breaks=True) if call.number < 2 else wire.openai(call)
    assert _answer(engine, Utterance(TONE)).text
    begun = {"type": "transcript.text.delta", "delta": "turn"}
    remote.script = lambda call: wire.events(begun, done=False, breaks=True)
    assert isinstance(_error(engine), ModelUnavailable)
    assert len(remote.calls) == 4


@pytest.mark.parametrize(
    ("models", "model_id", "word"),
    [
        (wire.refusal(401), "named", "VLLM_API_KEY"),
        (wire.refusal(503), "named", "503"),
        (Reply([b'{"data": []}']), "auto", "lists no model"),
        (wire.refusal(404), "named", ""),
        (Reply([b"what?"]), "named", ""),
    ],
)
def test_a_server_without_a_model_is_not_loaded(remote, engine_for, models, model_id, word):
    """A list of models is needed only where none is named."""
    remote.models = models
    with pytest.raises(ModelUnavailable, match=word) if word else nullcontext():
        assert _answer(engine_for(remote, model_id=model_id), Utterance(TONE))
