"""The table from error codes to the wire."""

import json
import re
from pathlib import Path

from asr_server.core import errors
from asr_server.core.errors import TABLE, AsrError
from asr_server.net.errors import http_response


def test_the_page_has_the_codes_with_their_statuses_and_close_codes():
    """The page is the contract with clients."""
    page = (Path(__file__).parents[3] / "docs" / "use" / "errors.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| \S.* \|$", page, re.MULTILINE)
    assert {*rows} == {(code, str(kind.status), str(kind.ws_close)) for code, kind in TABLE.items()}


def test_every_error_has_its_place_on_the_wire():
    """The envelope has OpenAI's four keys, and 429 and 503 say when to come back. Clients repeat every 5xx, unless a
    header says that it is no use: a server that is not set up stays so, and a 504 would be sent twice more, each time
    for the whole limit."""
    final = set()
    for code, kind in TABLE.items():
        response = http_response(AsrError("what happened", code=code))
        (content,) = json.loads(bytes(response.body)).values()
        assert content.keys() == {"message", "type", "param", "code"}
        assert (content["code"], content["message"]) == (code, "what happened")
        assert kind.status not in (429, 503) or 1 <= int(response.headers["retry-after"]) <= 60
        final |= {code} if response.headers.get("x-should-retry") == "false" else set()
    assert final == {"deadline_exceeded", "translation_unavailable", "speech_unavailable"}


def test_a_busy_server_says_how_long_it_will_be_busy():
    """Admission knows when there is room again, and that is what the header says; without it the table's seconds."""
    assert http_response(errors.Overloaded("full", retry_after_s=37)).headers["retry-after"] == "37"
    assert http_response(errors.ModelUnavailable("no weights")).headers["retry-after"] == "10"
