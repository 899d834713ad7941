"""Scripts of the fake engines. `conformance_test` has the contract; tests of the protocols use every fault."""

import json

import numpy as np
import pytest

from asr_server.engine import core
from asr_server.engine.conftest import planned
from asr_server.engine.protocol import Finish, Utterance
from asr_server.schedule.model import RowDone
from asr_server_fake.engine import FakeEngine
from asr_server_fake.script import FakeScript, Rule, ScriptError, read

PLAN = planned(model_id="fake")


def _run(engine, *utterances):
    """Return the answer to each utterance."""
    answers = {}
    engine.load()
    for key, utterance in enumerate(utterances):
        engine.admit(key, utterance)
    while len(answers) < len(utterances):
        answers |= {outcome.key: outcome.value for outcome in engine.step() if isinstance(outcome, RowDone)}
    return [answers[key] for key in range(len(utterances))]


def _sound(seconds=2.0):
    return np.full(int(16_000 * seconds), 0.5, np.float32)


def test_the_first_rule_that_applies_decides():
    """Rules choose by context, length, order of calls, temperature, and apply a number of times."""
    rules = (
        Rule(context="spell", text="s p e l l", language="German"),
        Rule(min_s=5, max_s=6, text="five"),
        Rule(call=4, text="the fourth"),
        Rule(sampled=True, text="warm", finish=Finish.LOOP),
        Rule(live=True, text="live"),
        Rule(times=1, text="only once"),
    )
    found = _run(
        FakeEngine(PLAN, script=FakeScript(rules=rules)),
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
    assert (found[0].language, found[2].finish) == ("German", Finish.LOOP)


def test_the_file_is_read_again_when_it_changes(tmp_path):
    """Counts begin anew with it."""
    script, texts = tmp_path / "script.json", []
    engine = None
    for text in ("before", "after"):
        (tmp_path / "new").write_text(json.dumps({"rules": [{"call": 1, "text": text}]}))
        (tmp_path / "new").rename(script)
        engine = engine or FakeEngine(PLAN, script=script)
        texts += [_run(engine, Utterance(_sound()))[0].text for _ in range(2)]
    assert texts == ["before", "one two three four", "after", "one two three four"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("{", "the file"),
        ('{"steps": 1}', "steps"),
        ('{"rules": [{"fault": "none"}]}', "rules.0.fault"),
        ('{"speech": {"rules": [{"words": "bad"}]}}', "speech.rules.0.words"),
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
        core.build_engine(planned(model_id="fake"))
