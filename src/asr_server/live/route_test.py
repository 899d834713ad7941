"""Who may resume a live session, and from which byte; the rest of the protocol is tested in E2Etest/contract."""

import pytest
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

PATH = "/ws/transcribe?use_server_vad=false"
KEYS = ("sk-first", "sk-second")


def _socket(client, query="", **options):
    return client.socket(f"{PATH}{query}", **options)


def _settled(socket):
    """Wait until the server has looked at all that was sent."""
    socket.send_text('{"action": "settled"}')
    while socket.receive_json().get("status") != "settled":
        pass


@pytest.mark.parametrize("sizes", [(1,), (1_001, 2, 4_099)])
def test_a_client_that_comes_back_is_told_how_many_bytes_arrived(client, sizes):
    """To the byte, also where a sample was cut in two: from there it sends the rest again."""
    with _socket(client) as socket:
        identity = socket.receive_json()["session_id"]
        for size in sizes:
            socket.send_bytes(bytes(size))
        _settled(socket)
        with _socket(client, f"&session_id={identity}") as again:
            hello = again.receive_json()
    assert (hello["session_id"], hello["resumed"], hello["received_bytes"]) == (identity, True, sum(sizes))


def test_a_session_is_resumed_by_its_own_key_alone(serve):
    """To another key there is no such session."""
    client = serve(api_keys=",".join(KEYS))
    own, other = ({"api-key": key} for key in KEYS)
    with _socket(client, headers=own) as socket:
        identity = socket.receive_json()["session_id"]
        with _socket(client, f"&session_id={identity}", headers=other) as foreign:
            assert foreign.receive_json()["error"]["code"] == "session_not_found"
            with pytest.raises(WebSocketDisconnect) as closed:
                foreign.receive_json()
        assert closed.value.code == 4004
        with pytest.raises(WebSocketDenialResponse), _socket(client, f"&session_id={identity}"):
            pass
        with _socket(client, f"&session_id={identity}", headers=own) as again:
            assert again.receive_json()["resumed"] is True


@pytest.mark.parametrize(
    ("query", "endpointing"),
    [
        ("", "manual"),
        ("?endpointing=auto", "pause"),
        ("?use_server_vad=true", "pause"),
        ("?use_server_vad=true&endpointing=manual", "manual"),
    ],
)
def test_without_the_servers_detection_only_a_flush_ends_an_utterance(serve, query, endpointing):
    """`ASR_USE_SERVER_VAD=false`, unless the query says otherwise; `endpointing` counts before its older name."""
    with serve(asr_use_server_vad=False, endpointing="pause").socket(f"/ws/transcribe{query}") as socket:
        assert socket.receive_json()["endpointing"] == endpointing


@pytest.mark.parametrize("is_worker", [False, True])
def test_only_a_gateway_says_when_its_audio_began(serve, is_worker):
    """A client that says so would go before those who speak."""
    client = serve(gateway_mode=is_worker)
    with _socket(client, "&began_s=7.5") as socket:
        socket.receive_json()
        (entry,) = client.state.services.live._open.values()
        assert (entry.session._pace.began_s == 7.5) == is_worker


@pytest.mark.parametrize("is_worker", [False, True])
def test_only_a_gateway_says_that_its_client_has_left(serve, speech, is_worker):
    """It ends the utterance, and is no action; to a client it is an unknown one."""
    client = serve(gateway_mode=is_worker)
    with _socket(client, "&endpointing=manual&handover=true") as socket:
        socket.receive_json()
        socket.send_bytes(speech)
        socket.send_text('{"action":"left"}')
        answer = socket.receive_json()
        while answer.get("is_partial"):
            answer = socket.receive_json()
        assert ("is_final" in answer, answer.get("code")) == ((True, None) if is_worker else (False, "invalid_value"))
        (entry,) = client.state.services.live._open.values()
        assert entry.session.received_actions == (0 if is_worker else 1)
