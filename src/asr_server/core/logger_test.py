"""Logging set-up."""

import json
import logging
import warnings

import pytest
from loguru import logger

from asr_server.core.logger import configure
from asr_server.core.setting_types import LogLevel


@pytest.fixture(autouse=True)
def _restore():
    yield
    logger.remove()
    logging.basicConfig(handlers=[], force=True)


def test_a_traceback_shows_no_local_values(capsys):
    """Values of variables would put audio, texts and keys into the log."""
    configure(LogLevel.INFO, as_json=False)
    secret = "".join(["can", "ary"])
    try:
        {}[len(secret)]
    except KeyError as error:
        logger.opt(exception=error).error("failed")
    written = capsys.readouterr().err
    assert "KeyError" in written
    assert "canary" not in written


def test_what_a_peer_wrote_stays_on_its_line(capsys):
    """Line breaks and the escapes of terminals are shown, in JSON and in pairs; letters of any script stay."""
    for as_json, field in ((False, "request failed status=200"), (True, '"status": 200')):
        configure(LogLevel.INFO, as_json=as_json)
        logger.info("request failed", status=200, reason="naïve 你好\n2026 INFO forged\x1b[2J")
        (line,) = capsys.readouterr().err.splitlines()
        assert "naïve 你好\\n2026 INFO forged\\" in line
        assert field in line
        assert "\x1b" not in line


def test_a_warning_is_a_line_with_the_id_of_its_request(capsys):
    """The warning is one of `warnings.warn`, or of a library's logger: the field is that of the code around them."""
    configure(LogLevel.INFO, as_json=True)
    with logger.contextualize(id="req_1"), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("{old}\nway", FutureWarning, stacklevel=1)
        logging.getLogger("decoder").warning("{odd}\nframe\n")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    found = [[line[name] for name in ("level", "id", "message", "logger")] for line in lines]
    said = [["{old}\\nway", "warnings"], ["{odd}\\nframe", "decoder"]]
    assert found == [["WARNING", "req_1", *one] for one in said]
    assert lines[0]["warning"] == "FutureWarning"
    assert lines[0]["place"].startswith("logger_test.py:")
