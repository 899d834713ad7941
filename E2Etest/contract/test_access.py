"""Keys: every route and socket asks for one, and the clients in use send it."""

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus

from asr_server.client.live import LiveClient, LiveError, LiveOptions
from E2Etest.drive import recordings
from E2Etest.drive.process import FIRST, SECOND
from E2Etest.drive.session import connected, data


@pytest.mark.slow("asks every route and socket")
@pytest.mark.guarantee("keys")
def test_every_route_and_socket_refuses_who_has_no_key(guarded, note):
    """All that the schema names, the live sockets and a path that does not exist: 401, whatever name is in `Host`."""
    schema = guarded.client.get("/openapi.json").json()["paths"]
    # Who reads a shared session has its token in place of a key.
    open_to_all, shared = {"/livez", "/readyz"}, {path for path in schema if path.startswith("/v1/live/shared/")}
    paths = {*schema, "/metrics", "/openapi.json", "/no/such/path"} - open_to_all - shared
    verbs = ("get", "post", "put", "delete", "head", "options", "patch", "query")
    # A page that asks for a key may be read at the root.
    routes = [(verb, path) for path in sorted(paths) for verb in verbs if path != "/" or verb in ("post", "put")]
    assert ("post", "/v1/audio/transcriptions") in routes
    with httpx.Client(base_url=guarded.base) as caller:
        for verb, path in routes:
            others = [{"Authorization": "Bearer sk-other"}, {"Host": "a.name.of.mine"}]
            for headers in ({}, *(others if verb in ("get", "post") else ())):
                answer = caller.request(verb, path.replace("{", "").replace("}", ""), headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (verb, path)
    with pytest.raises(InvalidStatus) as refused, connected(guarded, "/no/such/socket"):
        pass
    assert refused.value.response.status_code == 401
    for headers in ({}, {"Authorization": "Bearer x"}):  # commands print the message as it is
        text = httpx.get(f"{guarded.base}/v1/models", headers=headers).text
        assert "ASR_API_KEY" in text
        assert "--api-key-file" in text
    note(f"{len(routes)} routes and 3 WebSockets")


def test_openais_client_gets_in_with_a_key_and_its_error_without(guarded, sample):
    def heard(key):
        return guarded.openai(api_key=key).audio.transcriptions.create(file=sample[0], model="whisper-1").text

    with pytest.raises(openai.AuthenticationError) as refused:
        heard("sk-other")
    assert (refused.value.code, refused.value.type) == ("invalid_api_key", "invalid_request_error")
    assert refused.value.request_id
    assert heard(FIRST) == heard(SECOND) == sample[1]


def test_the_live_client_sends_the_key(guarded):
    with LiveClient(guarded.base, LiveOptions(token=FIRST)) as client:
        client.send(data(recordings.samples()))
        client.flush()
        assert next(line for line in client.lines() if line.final).text
    with pytest.raises(LiveError) as refused:
        LiveClient(guarded.base, LiveOptions(token="sk-other"))
    assert refused.value.code == "invalid_api_key"
