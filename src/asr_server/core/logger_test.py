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


def test_fields_are_fields_in_json_and_pairs_in_text(capsys):
    configure(LogLevel.INFO, as_json=True)
    logger.info("request", status=200)
    assert json.loads(capsys.readouterr().err)["status"] == 200
    configure(LogLevel.INFO, as_json=False)
    logger.info("request", status=200)
    assert "request status=200" in capsys.readouterr().err


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
    """Line breaks and the escapes of terminals are shown, in both forms; letters of any script stay."""
    for as_json in (False, True):
        configure(LogLevel.INFO, as_json=as_json)
        logger.info("request failed", reason="naïve 你好\n2026 INFO forged\x1b[2J")
        (line,) = capsys.readouterr().err.splitlines()
        assert "naïve 你好\\n2026 INFO forged\\" in line
        assert "\x1b" not in line


def test_a_warning_is_a_line_with_the_id_of_its_request(capsys):
    """The warning is one of `warnings.warn`, or of a library's logger: the field is that of the code around them."""
    configure(LogLevel.INFO, as_json=True)
    with logger.contextualize(id="req_1"), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("{old}\nway", FutureWarning, stacklevel=1)
        logging.getLogger("decoder").warning("{odd}\nframe\n")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {(line["level"], line["id"]) for line in lines} == {("WARNING", "req_1")}
    assert [(line["message"], line["logger"]) for line in lines] == [
        ("{old}\\nway", "warnings"),
        ("{odd}\\nframe", "decoder"),
    ]
    assert lines[0]["warning"] == "FutureWarning"
    assert lines[0]["place"].startswith("logger_test.py:")
