"""The command refuses wrong arguments before it listens."""

import pytest

from asr_server.cli.failure import Exit
from asr_server.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["--host", "0.0.0.0"], "--secret-file"),
        (["--host", "::"], "--secret-file"),
        (["--audiosocket-host", "0.0.0.0"], "--audiosocket-allow"),
        (["--audiosocket-host", "pbx.example.org"], "--audiosocket-allow"),
    ],
)
def test_other_machines_come_by_a_rule(arguments, missing, capsys):
    """A secret, or addresses; or the operator says that everybody may."""
    assert main(["telephony", *arguments]) == Exit.USAGE
    message = capsys.readouterr().err
    assert missing in message
    assert "--open" in message


@pytest.mark.parametrize(
    "arguments",
    [["--to", "file.txt"], ["--to", "ftp://a"], ["--max-calls", "0"], ["--audiosocket-allow", "10.0.0.0/99"]],
)
def test_a_wrong_value_is_named(arguments, capsys):
    """In one line, with the option."""
    with pytest.raises(SystemExit) as ended:
        main(["telephony", *arguments])
    assert ended.value.code == Exit.USAGE
    assert arguments[0] in capsys.readouterr().err


def test_an_empty_secret_is_no_secret(capsys):
    assert main(["telephony", "--secret-file", "/dev/null"]) == Exit.USAGE
    assert "--secret-file" in capsys.readouterr().err
