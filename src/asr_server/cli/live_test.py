"""The live command's display and sources; the whole command runs in E2Etest/cli/test_live.py."""

import io
import sys
import threading

from asr_server import demo
from asr_server.cli.live import LineView, LiveCommand, live
from asr_server.client.live import Line


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _line(committed, tentative, ending=""):
    return Line(1, committed, tentative, ending, "English", 0.0, 1.0, 10)


def test_a_terminal_shows_the_open_line_with_committed_words_in_bold():
    """The line is replaced in place; a final stays on a line of its own."""
    out = _Terminal()
    view = LineView(out)
    view.show(_line("turn on", " the"))
    view.show(_line("turn on the lights", "", "pause"))
    assert out.getvalue() == "\r\x1b[2K\x1b[1mturn on\x1b[0m the\r\x1b[2Kturn on the lights\n"


def test_a_long_line_is_shown_by_its_end():
    """It never wraps, or replacing it would leave pieces behind."""
    out = _Terminal()
    LineView(out).show(_line("a" * 500, " new words"))
    shown = out.getvalue().removeprefix("\r\x1b[2K").replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert shown.endswith("a new words")
    assert len(shown) < 400


def test_a_pipe_gets_finals_alone():
    """One line each, without any control characters, and none for an empty one."""
    out = io.StringIO()
    view = LineView(out)
    for line in (_line("turn", " on"), _line("turn on", "", "pause"), _line("", "", "flush")):
        view.show(line)
    assert out.getvalue() == "turn on\n"


def test_without_a_microphone_package_the_message_says_what_to_do(monkeypatch, capsys):
    """The package is optional."""
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert live(LiveCommand("http://127.0.0.1:1", None)) == 1
    assert "pip install sounddevice" in capsys.readouterr().err


class _Drained:
    """A session that its server ends in order after one line, as a server that shuts down does."""

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def send(self, pcm): ...

    def flush(self): ...

    def lines(self):
        yield _line("turn on", "", "close")


def test_a_session_that_the_server_ends_early_is_a_failure(monkeypatch, capsys):
    """Half of the text is not reported as all of it."""
    monkeypatch.setattr("asr_server.cli.live._connect", lambda command: _Drained())
    assert live(LiveCommand("http://127.0.0.1:1", demo.sample().recording, speed=0.0)) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("turn on\n", 1)


class _Flushed(_Drained):
    """A session that answers the flush."""

    def __init__(self):
        self._flushed = threading.Event()

    def flush(self):
        self._flushed.set()

    def lines(self):
        assert self._flushed.wait(10)
        yield _line("turn on", "", "flush")


def test_a_microphone_that_fails_is_reported_after_the_text(monkeypatch, capsys):
    """The words until then are shown, and the command does not wait for more."""

    def unplugged():
        yield b"12"
        raise RuntimeError("device unavailable")

    monkeypatch.setattr("asr_server.cli.live._connect", lambda command: _Flushed())
    monkeypatch.setattr("asr_server.cli.live._microphone", unplugged)
    assert live(LiveCommand("http://127.0.0.1:1", None)) == 1
    printed = capsys.readouterr()
    assert printed.out == "turn on\n"
    assert "device unavailable" in printed.err


def test_a_missing_file_or_server_is_one_line_on_stderr(tmp_path, capsys):
    """No traceback."""
    assert live(LiveCommand("http://127.0.0.1:1", tmp_path / "none.wav")) == 1
    assert capsys.readouterr().err.count("\n") == 1
