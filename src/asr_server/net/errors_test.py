"""The table from error codes to the wire."""

import json
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from asr_server import app
from asr_server.core import errors
from asr_server.core.settings import Settings
from asr_server.net.access import AccessRules
from asr_server.net.errors import TABLE, http_response, install_handlers


def test_every_error_has_its_place_on_the_wire():
    """An envelope with OpenAI's four keys, and a status that says that it is an error."""
    for leaf in errors.leaves():
        answer = http_response(leaf("what happened"))
        assert 400 <= answer.status_code < 600, leaf
        (content,) = json.loads(bytes(answer.body)).values()
        assert content.keys() == {"message", "type", "param", "code"}
        assert (content["code"], content["message"]) == (leaf.code, "what happened")


def test_the_table_holds_nothing_else():
    """A code that no error has would be dead."""
    assert set(TABLE) == {leaf.code for leaf in errors.leaves()} | {errors.AsrError.code}


def test_the_callers_faults_are_400s_and_ours_are_not():
    """Clients retry 5xx and 429, never 4xx: so the side of the fault decides the status."""
    for leaf in errors.leaves(errors.InvalidInput):
        assert 400 <= TABLE[leaf.code].status < 500
    for leaf in errors.leaves(errors.EngineError):
        assert TABLE[leaf.code].status >= 500


def test_everything_that_asks_to_come_back_says_when():
    """429 and 503 carry Retry-After within 1..60 s."""
    for leaf in errors.leaves():
        if TABLE[leaf.code].status in (429, 503):
            assert 1 <= int(http_response(leaf("x")).headers["retry-after"]) <= 60


def test_a_busy_server_says_how_long_it_will_be_busy():
    """Admission knows when there is room again, and that is what the header says; without it the table's seconds."""
    assert http_response(errors.Overloaded("full", retry_after_s=37)).headers["retry-after"] == "37"
    assert http_response(errors.ModelUnavailable("no weights")).headers["retry-after"] == "10"


def test_clients_are_reported_not_to_repeat_what_cannot_pass():
    """They repeat every 5xx, unless a header says that it is no use: a server that is not set up stays so, and a 504
    would be sent twice more, each time for the whole limit."""
    final = [leaf.code for leaf in errors.leaves() if http_response(leaf("x")).headers.get("x-should-retry") == "false"]
    not_set_up = [errors.TranslationUnavailable.code, errors.SpeechUnavailable.code]
    assert final == [errors.DeadlineExceeded.code, *not_set_up]


def test_close_codes_are_ones_that_may_be_sent():
    """RFC 6455: 1005, 1006 and 1015 are never sent; private codes are 3000 to 4999."""
    for wire in TABLE.values():
        assert wire.ws_close in {1000, 1001, 1008, 1009, 1011, 1012, 1013} or 3000 <= wire.ws_close < 5000


@pytest.mark.parametrize(("body", "connection"), [(b"x", None), (iter([b"x"]), "close")], ids=["length", "chunked"])
def test_a_body_without_an_end_in_sight_is_read_no_further(body, connection):
    """The server would read the rest to keep the connection: it is closed, unless its length was told."""
    refusing = FastAPI()
    install_handlers(refusing)

    @refusing.post("/")
    def refuse():
        raise errors.FileTooLarge("too large")

    with TestClient(refusing) as client:
        answer = client.post("/", content=body)
    assert (answer.status_code, answer.headers.get("connection")) == (413, connection)


def test_a_fault_of_ours_has_its_request_id_too():
    """The id by which the log is searched is on the one answer that asks for that."""

    @asynccontextmanager
    async def without_services(_):
        yield

    rules = AccessRules.of(Settings(_env_file=None))
    with TestClient(app.routed(without_services, rules), raise_server_exceptions=False) as client:
        answer = client.get("/health", headers={"X-Request-ID": "abc", "Host": "localhost"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "abc")
    assert answer.json()["error"]["type"] == "server_error"
