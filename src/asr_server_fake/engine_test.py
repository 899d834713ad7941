"""The fake engine's script: rules, faults and delays. The engine contract is in `conformance_test`."""

import json
import threading
import time

import numpy as np
import pytest

from asr_server.core import settings
from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable, TranscriptionFailed
from asr_server.engine import core, plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.conftest import aligned
from asr_server.engine.protocol import AlignItem, Finish, Tokens, Utterance
from asr_server.schedule.ports import RowDelta, RowDone, RowFailed
from asr_server_fake.engine import FakeAligner, FakeEngine
from asr_server_fake.script import FakeScript, Fault, Rule, ScriptError, read

MACHINE = Capabilities(gpu=True, torch_cuda=True)


def _plan(**values):
    return plan.resolve(settings.load(_env_file=None, model_id="fake", **values), MACHINE)


def _engine(*rules, **values):
    engine = FakeEngine(_plan(), script=FakeScript(rules=rules, **values))
    engine.load()
    return engine


def _sound(seconds=2.0):
    return np.full(int(16_000 * seconds), 0.5, np.float32)


def _run(engine, *utterances):
    """Return the end of each utterance: a hypothesis or an error."""
    ended = {}
    for key, utterance in enumerate(utterances):
        engine.admit(key, utterance)
    while len(ended) < len(utterances):
        for outcome in engine.step():
            if isinstance(outcome, RowDone):
                ended[outcome.key] = outcome.value
            elif isinstance(outcome, RowFailed):
                ended[outcome.key] = outcome.error
    return [ended[key] for key in range(len(utterances))]


def test_the_default_answer_follows_from_the_audio():
    """The answer has as many words as its length says; silence, also with a little noise, is no speech."""
    noise = np.random.default_rng(0).normal(0, 1e-3, 16_000).astype(np.float32)
    long, short, silent = _run(_engine(), *map(Utterance, (_sound(11.2), _sound(0.3), noise)))
    assert long.text.split()[:3] == ["one", "two", "three"]
    assert len(long.text.split()) == 22
    assert long.text.endswith("twenty-two")
    assert (short.text, short.language) == ("one", "English")
    assert (silent.text, silent.language) == ("", "")
    assert silent.no_speech_prob > 0.9 > 0.1 > long.no_speech_prob


def test_the_first_rule_that_applies_decides():
    """Rules choose by context, length, order of calls, temperature, and apply a number of times."""
    engine = _engine(
        Rule(context="spell", text="s p e l l", language="German"),
        Rule(min_s=5, max_s=6, text="five"),
        Rule(call=4, text="the fourth"),
        Rule(sampled=True, text="warm", finish=Finish.LOOP),
        Rule(live=True, text="live"),
        Rule(times=1, text="only once"),
    )
    found = _run(
        engine,
        Utterance(_sound(5.5), context="please spell it"),
        Utterance(_sound(5.5)),
        Utterance(_sound(), temperature=0.5),
        Utterance(_sound()),
        Utterance(_sound(), session="one"),
        Utterance(_sound()),
        Utterance(_sound()),
    )
    texts = ["s p e l l", "five", "warm", "the fourth", "live", "only once", "one two three four"]
    assert [answer.text for answer in found] == texts
    assert found[0].language == "German"
    assert found[2].finish is Finish.LOOP


def test_a_loop_is_heard_in_the_deltas_and_folded_in_the_answer():
    """The deltas have the repetitions and the answer has one, as the contract says of loops."""
    engine = _engine(Rule(text="on and on", finish=Finish.LOOP))
    engine.admit(1, Utterance(_sound(), stream=True))
    heard = ""
    while engine.free_slots < 8:
        for outcome in engine.step():
            if isinstance(outcome, RowDelta):
                assert isinstance(outcome.value, Tokens)
                heard += outcome.value.text
    assert heard.startswith("on and on on on")
    assert outcome.value.text == "on and on"


@pytest.mark.parametrize(("fault", "error"), [("raise", TranscriptionFailed), ("memory", EngineOutOfMemory)])
@pytest.mark.parametrize("after_tokens", [0, 2])
def test_a_fault_fails_its_own_row(fault, error, after_tokens):
    """The fault comes after that many tokens, and never in the row next to it."""
    engine = _engine(Rule(context="bad", fault=Fault(fault), after_tokens=after_tokens))
    engine.admit(0, Utterance(_sound(), context="bad"))
    outcomes = [outcome for _ in range(after_tokens + 1) for outcome in engine.step()]
    assert sum(len(o.value.ids) for o in outcomes if isinstance(o, RowDelta)) == after_tokens
    assert isinstance(outcomes[-1].error, error)
    assert engine.free_slots == 8
    failed, well = _run(engine, Utterance(_sound(), context="bad"), Utterance(_sound()))
    assert isinstance(failed, error)
    assert well.text == "one two three four"


def test_a_fault_at_admission_is_raised_there():
    """Nothing of the row is left."""
    engine = _engine(Rule(fault=Fault.RAISE, at="admission"))
    with pytest.raises(TranscriptionFailed):
        engine.admit(0, Utterance(_sound()))
    assert engine.free_slots == 8


def test_a_broken_step_raises():
    """No row can be told to be at fault; it happens once for each row that the rule is for."""
    engine = _engine(Rule(context="bad", fault=Fault.BREAK))
    engine.admit(0, Utterance(_sound()))
    engine.admit(1, Utterance(_sound(), context="bad"))
    with pytest.raises(RuntimeError):
        list(engine.step())


def test_a_hang_lasts_while_its_file_is_there(tmp_path):
    """The file is created when it begins, and whoever deletes it ends it; the row then goes on."""
    hangs = tmp_path / "hangs"
    engine = _engine(Rule(fault=Fault.HANG, hang_file=hangs))
    found = []
    thread = threading.Thread(target=lambda: found.extend(_run(engine, Utterance(_sound()))))
    thread.start()
    give_up_s = time.monotonic() + 10
    while not hangs.exists():
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    thread.join(0.05)
    assert thread.is_alive()
    hangs.unlink()
    thread.join(10)
    assert [answer.text for answer in found] == ["one two three four"]


def test_a_rule_with_a_file_applies_once_for_all_engines(tmp_path):
    """The rule applies to the first of several workers that run the same script."""
    rule = Rule(text="first", once_file=tmp_path / "once")
    texts = [_run(_engine(rule), Utterance(_sound()))[0].text for _ in range(2)]
    assert texts == ["first", "one two three four"]


@pytest.mark.parametrize(("fault", "error"), [("raise", ModelUnavailable), ("memory", EngineOutOfMemory)])
def test_loads_fail_as_often_as_the_script_says(fault, error):
    """The load after those succeeds."""
    engine = FakeEngine(_plan(), script=FakeScript(load_failures=2, load_fault=Fault(fault)))
    for _ in range(2):
        with pytest.raises(error):
            engine.load()
        assert not engine.loaded
    engine.load()
    assert engine.loaded


@pytest.mark.parametrize("values", [{"load_s": 0.05}, {"load_freeze_s": 0.05}])
def test_a_load_takes_its_time(values):
    """Asleep, or with the whole process standing still."""
    began_s = time.monotonic()
    _engine(**values)
    assert time.monotonic() - began_s >= 0.05


def test_steps_take_their_time():
    """Every second step takes the longer time, the first one included."""
    engine = _engine(step_s=0.001, stall_every=2, stall_s=0.05)
    engine.admit(0, Utterance(_sound()))
    took_s = []
    for _ in range(3):
        began_s = time.monotonic()
        list(engine.step())
        took_s.append(time.monotonic() - began_s)
    assert min(took_s[0], took_s[2]) >= 0.05
    assert took_s[1] >= 0.001


def test_the_file_is_read_again_when_it_changes(tmp_path, monkeypatch):
    """Counts begin anew with it."""
    script = tmp_path / "script.json"

    def write(**fields):
        (tmp_path / "new").write_text(json.dumps(fields))
        (tmp_path / "new").rename(script)

    write(rules=[{"call": 1, "text": "before"}])
    monkeypatch.setenv("FAKE_ENGINE_SCRIPT", str(script))
    engine = core.build_engine(_plan())
    engine.load()
    texts = [_run(engine, Utterance(_sound()))[0].text for _ in range(2)]
    write(rules=[{"call": 1, "text": "after"}])
    texts += [_run(engine, Utterance(_sound()))[0].text]
    assert texts == ["before", "one two three four", "after"]


def test_a_test_in_the_process_may_give_another_script_and_another_default():
    """Counts begin anew with the script; a rule without a text leaves the default."""
    engine = FakeEngine(_plan(), script=FakeScript(rules=(Rule(call=1, text="before"),)), default_text=lambda _: "else")
    engine.load()
    texts = [_run(engine, Utterance(_sound()))[0].text for _ in range(2)]
    engine.scripts.replace(FakeScript(rules=(Rule(call=1, text="after"), Rule(language="German"))))
    found = [_run(engine, Utterance(_sound()))[0] for _ in range(2)]
    assert [*texts, *(answer.text for answer in found)] == ["before", "else", "after", "else"]
    assert found[1].language == "German"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("{", "the file"),
        ('{"steps": 1}', "steps"),
        ('{"rules": [{"fault": "none"}]}', "rules.0.fault"),
        (None, "No such"),
    ],
)
def test_a_bad_script_is_refused_with_its_place(tmp_path, monkeypatch, content, place):
    """A script is read when the engine is built: a typing error must not become a test that tests nothing."""
    script = tmp_path / "script.json"
    if content is not None:
        script.write_text(content)
    with pytest.raises(ScriptError, match=place):
        read(script)
    monkeypatch.setenv("FAKE_ENGINE_SCRIPT", str(script))
    with pytest.raises(ScriptError, match="FAKE_ENGINE_SCRIPT"):
        core.build_engine(_plan())


def test_the_aligner_does_what_the_script_says():
    """The aligner is missing, fails, or spreads the words evenly."""
    item = AlignItem(_sound(2.0), "It's one, two: 你好!", "English")
    aligner = FakeAligner(_plan())
    aligner.locate()
    aligner.load()
    (found,) = aligned(aligner, [item])
    assert [piece.text for piece in found.pieces] == ["It's", "one", "two", "你", "好"]
    assert (found.pieces[0].start_ms, found.pieces[0].end_ms, found.pieces[-1].end_ms) == (0, 400, 2000)
    with pytest.raises(ModelUnavailable):
        FakeAligner(_plan(), FakeScript(aligner_missing=True)).locate()
    (failed,) = aligned(FakeAligner(_plan(), FakeScript(align_fails=True)), [item])
    assert isinstance(failed, TranscriptionFailed)


def test_only_its_own_name_starts_it():
    """The plan says so on the first line."""
    resolved = _plan()
    assert (resolved.engine, resolved.device, resolved.aligner_id) == ("fake", "cpu", "fake")
    assert (resolved.options[0].name, resolved.options[0].value) == ("engine", "fake")
    for name in ("demo", "Qwen/Qwen3-ASR-1.7B", "fake/fake", "./fake"):
        other = plan.resolve(settings.load(_env_file=None, model_id=name), MACHINE)
        assert other.engine == "qwen"
        assert "engine" not in [option.name for option in other.options]
