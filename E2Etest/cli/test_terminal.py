"""`asr-server transcribe` on a pseudo-terminal: bars, colours, questions."""

import re

import pytest

from E2Etest.cli.commands import on_terminal

pytestmark = pytest.mark.integration

_SPEED = r"\d+\.\dx"
_LEFT = r"\d+:\d\d left"


def _shown_at_the_end(terminal):
    """The lines that stay: what is cleared, and the cursor's comings and goings, taken out."""
    terminal = re.sub(r"\x1b\[\?25[lh]", "", terminal)
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[\d*[A-Za-z]|\x1b\[[\d;]*m|\r|\n|[^\x1b\r\n]+", terminal):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.endswith("A"):
            row -= int(token[2:-1] or 1)
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token == "\r" or token.startswith("\x1b"):
            continue
        else:
            lines[row] += token
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.nightly
@pytest.mark.parametrize("is_redirected", [False, True])
@pytest.mark.parametrize(("how", "pace"), [([], _SPEED), (["--job"], f"{_SPEED}  {_LEFT}")])
def test_a_bar_shows_name_and_speed_and_is_gone_at_the_end(cli_server, long_talk, tmp_path, how, pace, is_redirected):
    """While spans come in, or the events of a job, which say what is left. The words stay on the terminal, or are in
    the file that standard output is."""
    out = tmp_path / "talk.txt" if is_redirected else None
    code, terminal = on_terminal("transcribe", "--server", cli_server.base, long_talk, *how, stdout=out)
    assert code == 0
    assert "long.wav" in terminal
    assert "━" in terminal
    assert re.search(pace, terminal)
    stays = _shown_at_the_end(terminal)
    (words,) = out.read_text().splitlines() if out else stays
    assert words.startswith("hello turn on")
    assert not (out and stays)


def test_failures_stay_readable_among_bars(cli_server, talks, words):
    """Each is a line of its own, as are the words."""
    names = [talks / "hello.wav", talks / "broken.wav", talks / "more" / "again.flac"]
    code, terminal = on_terminal("transcribe", "--server", cli_server.base, *names, COLUMNS="300")
    assert code == 1
    stays = _shown_at_the_end(terminal)
    assert stays.count(words) == 2
    assert next(line for line in stays if "invalid_audio" in line).startswith("asr-server transcribe: ")


@pytest.mark.parametrize("arguments", [["--quiet"], ["--stream"]])
def test_no_bar_where_none_is_wanted(cli_server, talks, words, arguments):
    """Quiet means quiet, and words that stream to the terminal move by themselves."""
    code, terminal = on_terminal("transcribe", "--server", cli_server.base, talks / "hello.wav", *arguments)
    assert (code, terminal) == (0, f"{words}\r\n")
