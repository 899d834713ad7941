"""The live command's display and sources; the whole command runs in E2Etest/cli/test_live.py."""

import io
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from asr_server import demo
from asr_server.cli.conftest import Terminal
from asr_server.cli.formats import Format
from asr_server.cli.live import FinalsWriter, LineView
from asr_server.cli.main import main
from asr_server.client.conftest import says, servers, text
from asr_server.client.live import Line, LiveClient
from asr_server.core.transcript import SpeakerRun, TimeSource, Word
from asr_server.subtitle.cues import parse_srt, parse_vtt


def _line(committed, tentative, ending=""):
    return Line(1, committed, tentative, ending, "English", 0.0, 1.0, 10)


def test_a_terminal_shows_the_open_line_with_committed_words_in_bold():
    """The line is replaced in place; a final stays on a line of its own."""
    out = Terminal()
    view = LineView(out)
    view.show(_line("turn on", " the"))
    view.show(_line("turn on the lights", "", "pause"))
    assert out.getvalue() == "\r\x1b[2K\x1b[1mturn on\x1b[0m the\r\x1b[2Kturn on the lights\n"


def test_a_long_line_is_shown_by_its_end():
    """The line never wraps, or replacing it would leave pieces."""
    out = Terminal()
    LineView(out).show(_line("a" * 500, " new words"))
    shown = out.getvalue().removeprefix("\r\x1b[2K").replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert shown.endswith("a new words")
    assert len(shown) < 400


def test_without_a_microphone_package_the_message_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert live("--mic") == 1
    assert "pip install sounddevice" in capsys.readouterr().err


def live(*arguments, server="http://127.0.0.1:1"):
    return main(["live", "--server", server, *map(str, arguments)])


def _flushed(side):
    side.hello()
    side.hear(actions=1)
    side.say(text(1, "turn on", ending="flush"))
    side.end()


TIMES = (("turn", 0, 400), ("on", 400, 900), ("the", 1_000, 1_200), ("lights", 1_200, 1_900))


def _timed(number, text="turn on the lights"):
    """A final, and the same with the times of its words, an hour after the last one."""
    final = replace(_line(text, "", "pause"), utterance=number, start_s=3600.0 * number, end_s=3600.0 * number + 2.5)
    words = tuple(Word(t, 3_600_000 * number + a, 3_600_000 * number + b, TimeSource.ESTIMATED) for t, a, b in TIMES)
    return final, replace(final, words=words)


def _written(*lines, wanted=Format.TEXT, **how):
    """Show these lines, and return what is written after each, and at the end."""
    out = io.StringIO()
    writer = FinalsWriter(out, wanted, **how)
    found = [writer.show(line) or out.getvalue() for line in lines]
    writer.close()
    return [*found, out.getvalue()]


@pytest.mark.parametrize(("wanted", "read"), [(Format.SRT, parse_srt), (Format.VTT, parse_vtt)])
def test_finals_become_cues_one_behind_the_other(wanted, read):
    """Cues come as soon as the times of the words are there. Numbers go on, and the file has one head."""
    written = _written(_line("turn", " on"), *_timed(1), *_timed(2), wanted=wanted)
    assert [len(read(text)) for text in written] == [0, 0, 1, 1, 2, 2]
    assert [cue.start_ms for cue in read(written[-1])] == [3_600_000, 7_200_000]
    assert {cue.text for cue in read(written[-1])} == {"turn on the lights"}
    assert written[-1].count("WEBVTT") == (wanted is Format.VTT)
    assert "\n\n2\n" in written[-1] or wanted is Format.VTT


def test_a_final_without_times_is_a_cue_of_its_own():
    """The times of a final are lost where the connection breaks after it; its words are not."""
    lines = _timed(1, "lost times")[0], *_timed(2), _timed(3, "the last")[0]
    cues = parse_srt(_written(*lines, wanted=Format.SRT)[-1])
    assert [cue.text for cue in cues] == ["lost times", "turn on the lights", "the last"]
    assert (cues[0].start_ms, cues[0].end_ms) == (3_600_000, 3_602_500)


def test_a_file_gets_the_finals_and_the_terminal_too(tmp_path, capsys):
    path = tmp_path / "said.txt"
    arguments = ("--file", demo.sample().recording, "--speed", "0", "-o", path)
    with servers(_flushed, says(), _flushed) as url:
        assert live(*arguments, server=url) == 0
        assert path.read_text() == capsys.readouterr().out == "turn on\n"
        assert live(*arguments, server=url) == 1
        assert "output_exists" in capsys.readouterr().err
        path.write_text("old")
        assert live(*arguments, "--force", server=url) == 0
    assert path.read_text() == "turn on\n"


def _sound(devices=(), **stream):
    opened = MagicMock(**stream)
    return SimpleNamespace(RawInputStream=opened, query_devices=lambda: devices, PortAudioError=RuntimeError)


def test_a_microphone_that_is_not_there_is_answered_with_those_that_are(monkeypatch, capsys):
    devices = [{"name": name, "max_input_channels": inputs} for name, inputs in (("Speakers", 0), ("USB Audio", 1))]
    monkeypatch.setitem(sys.modules, "sounddevice", _sound(side_effect=ValueError("No device."), devices=devices))
    with servers(_flushed) as url:
        assert live("--mic", "--device", "USB Audo", server=url) == 1
    assert "There are: USB Audio. Did you mean USB Audio?" in capsys.readouterr().err


def test_a_session_that_the_server_ends_early_is_a_failure(capsys):
    with servers(says(text(1, "turn on", ending="pause"), code=1000)) as url:
        assert live("--file", demo.sample().recording, "--speed", "0", server=url) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("turn on\n", 1)


def test_a_microphone_that_fails_is_reported_after_the_text(monkeypatch, capsys):
    microphone = MagicMock()
    microphone.read.side_effect = [(b"12", False), RuntimeError("device unavailable")]
    monkeypatch.setitem(sys.modules, "sounddevice", _sound(return_value=microphone))
    with servers(_flushed) as url:
        assert live("--mic", server=url) == 1
    printed = capsys.readouterr()
    assert printed.out == "turn on\n"
    assert "device unavailable" in printed.err


def _labelled(number, runs, *, settled=False, ending="pause"):
    text = "".join(text for _, text in runs)
    speakers = tuple(SpeakerRun(*run) for run in runs)
    return replace(_line(text, "", ending), utterance=number, speakers=speakers, speakers_settled=settled)


def test_finals_wait_for_their_speakers_and_none_overtakes_another():
    """A line for each speaker, once; a final without speakers at the end is shown as it is."""
    out = io.StringIO()
    view = LineView(out)
    view.show(_labelled(1, [("A", "hello"), (None, " you")]))
    view.show(_labelled(2, [("A", "bye")]))
    assert out.getvalue() == ""
    view.show(_labelled(1, [("A", "hello"), ("B", " you")]))
    view.show(_labelled(1, [("A", "hello you")], settled=True))
    assert out.getvalue() == "A: hello\nB: you\nA: bye\n"
    view.show(_labelled(3, [("B", "so"), (None, " long")]))
    view.close()
    assert out.getvalue().endswith("A: bye\nB: so\nlong\n")


def test_a_file_waits_while_the_client_has_no_room(monkeypatch):
    """However fast it is sent, nothing that another server would need is dropped."""
    waits, sent = [False, False], []
    monkeypatch.setattr(LiveClient, "has_room", property(lambda _: not waits or waits.pop()))
    monkeypatch.setattr(LiveClient, "send", lambda _, pcm: sent.append(len(waits)))
    with servers(_flushed) as url:
        assert live("--file", demo.sample().recording, "--speed", "0", server=url) == 0
    assert set(sent) == {0}


def test_a_cue_has_the_words_of_one_speaker():
    """The last labels count, which may have come after the words."""
    line = replace(_timed(1)[1], speakers=(SpeakerRun("A", "turn on"), SpeakerRun("B", " the lights")))
    assert len(parse_srt(_written(line, wanted=Format.SRT)[0])) == 2
