"""Results of recordings whose errors are known, and their report."""

import json
from pathlib import Path

import pytest

from asr_server.cli.evaluate.references import Reference, SystemAnswer
from asr_server.cli.evaluate.results import Other, as_json, previous, report, results
from asr_server.cli.failure import UsageError
from asr_server.cli.recording_files import RecordingSource

SYSTEM = {"server": "http://a", "model": "m"}


def _reference(name, text, language="en", speaker=""):
    return Reference(RecordingSource(Path("/talks") / name, Path(name)), text, language, speaker)


def _results(references, texts, *, failures=None, other=None, normalise=True):
    pairs = zip(references, texts, strict=True)
    answers = [(one, SystemAnswer(text, "en", 60.0)) for one, text in pairs if text is not None]
    return results(SYSTEM, answers, failures or {}, normalise=normalise, other=other)


def _other(references, texts):
    pairs = zip(references, texts, strict=True)
    return Other("b", {(one.name, one.text): text for one, text in pairs})


def _printed(found, worst=10):
    return "\n".join(report(found, worst))


def test_rates_are_of_all_words_together():
    """A long recording weighs more than a short one. Groups have theirs, the worst first, also recordings."""
    references = [
        _reference("a.wav", "red green blue white black grey brown", "de", "ann"),
        _reference("b.wav", "red", "de", "bob"),
        _reference("c.wav", "red green", "en", "bob"),
    ]
    found = _results(references, ["red green blue white black grey brown", "green", "red"])
    assert found["total"]["words"]["rate"] == 2 / 10
    rates = [
        (name, one["words"]["rate"]) for groups in ("languages", "speakers") for name, one in found[groups].items()
    ]
    assert rates == [("English", 0.5), ("German", 1 / 8), ("bob", 2 / 3), ("ann", 0)]
    assert [one["name"] for one in found["recordings"]] == ["b.wav", "c.wav", "a.wav"]
    assert found["total"]["words"]["interval"] is None  # of three recordings


def test_a_language_that_nobody_states_is_the_one_that_the_server_found():
    """The rules of English write "don't" as "do not", and the basic ones do not."""
    found = _results([_reference("a.wav", "don't", language="")], ["do not"])
    assert found["recordings"][0]["language"] == "English"
    assert found["total"]["words"]["errors"] == 0


def test_recordings_that_failed_are_told_and_not_counted():
    """And references without words, whose text is extra words."""
    references = [_reference("a.wav", "red green"), _reference("b.wav", "blue"), _reference("silence.wav", "")]
    failures = {"b.wav": "invalid_audio"}
    found = _results(references, ["red green", None, "so"], failures=failures)
    words = found["total"]["words"]
    assert (found["total"]["recordings"], words["units"], words["errors"]) == (2, 2, 1)
    assert found["recordings"][0]["name"] == "silence.wav"
    assert json.loads(as_json(found))["failed"] == {"b.wav": "invalid_audio"}
    printed = _printed(found)
    assert "1 recordings failed and are not counted." in printed
    assert "1 references have no words" in printed
    assert "- " in next(line for line in printed.splitlines() if "silence.wav" in line)


@pytest.mark.parametrize(
    ("mine", "others", "verdict"),
    [
        (["red green blue white"] * 18, ["red green blue x"] * 18, "This one is better by "),
        (["red green blue x"] * 18, ["red green blue white"] * 18, "The other is better by "),
        (
            ["red green blue"],
            ["red green blue white"],
            "The difference of 1.25 points cannot be told from chance (95 %",
        ),
    ],
)
def test_a_difference_on_most_recordings_is_more_than_chance(mine, others, verdict):
    """The systems are equal on the others of twenty, so that the difference varies. The verdict is printed."""
    references = [_reference(f"{number:02}.wav", "red green blue white") for number in range(20)]
    same = ["red green blue white"] * (20 - len(mine))
    found = _results(references, same + mine, other=_other(references, same + others))
    assert found["comparison"]["verdict"].startswith(verdict)
    assert abs(found["comparison"]["difference"]) == len(mine) / 80
    assert found["comparison"]["verdict"] in _printed(found)


def test_results_are_compared_where_both_have_the_same_recording_and_reference(tmp_path):
    """Earlier texts are measured again by this run's normalisation, and recordings left out are counted."""
    before = [_reference("a.wav", "Red, green"), _reference("b.wav", "blue"), _reference("gone.wav", "white")]
    file = tmp_path / "before.json"
    file.write_bytes(as_json(_results(before, ["red green", "x", "x"], normalise=False)))
    now = [_reference("a.wav", "Red, green"), _reference("b.wav", "another text"), _reference("new.wav", "black")]
    found = _results(now, ["red grin", "x", "x"], other=previous(file))
    both = found["comparison"]
    assert (both["recordings"], both["errors"], both["other_errors"]) == (1, 1, 0)
    assert "on 1 recordings; 2 are not in both, or have another text there" in _printed(found)
    assert f"http://a, model m ({file.name})" in _printed(found)


@pytest.mark.parametrize(
    ("content", "said"), [("{}", "not a result"), ("nothing", "not a result"), ('{"version": 9}', "another version")]
)
def test_another_file_is_no_result(tmp_path, content, said):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UsageError, match=said):
        previous(tmp_path / "x.json")


def test_the_report_lists_the_worst_and_hides_what_a_terminal_would_obey():
    """The report has as many recordings as are wanted, and names keep their columns in any script."""
    speakers = {"\x1b[2Jbad.wav": "安", "ok.wav": "bob"}
    references = [_reference(name, "red green", speaker=speaker) for name, speaker in speakers.items()]
    printed = _printed(_results(references, ["x y", "red x"]), worst=1)
    assert "\x1b" not in printed
    assert "100.0 %  2 in 2" in printed
    assert "ok.wav" not in printed
    rows = [line for line in printed.splitlines() if line.startswith(("安", "bob"))]
    assert len({line.index("%") + line.count("安") for line in rows}) == 1
