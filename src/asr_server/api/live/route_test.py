"""The live socket in process, on the fake engine: what a client is told of its session when it comes and goes."""

import numpy as np
import pytest
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

PATH = "/ws/transcribe?use_server_vad=false"
KEYS = ("sk-first", "sk-second")


def _loud(samples):
    """A tone in 16 bit: speech to a detector of loudness."""
    return (np.sin(np.arange(samples) / 5) * 8_000).astype("<i2").tobytes()


def _socket(client, query="", **options):
    return client.socket(f"{PATH}{query}", **options)


def _final(socket):
    while not (message := socket.receive_json()).get("is_final"):
        pass
    return message


def _settled(socket):
    """Wait until the server has looked at all that was sent."""
    socket.send_text('{"action": "settled"}')
    while socket.receive_json().get("status") != "settled":
        pass


def test_a_flush_is_answered_with_the_words_so_far(client):
    """The first message names the session; partials and the final say which utterance they are of."""
    with _socket(client) as socket:
        hello = socket.receive_json()
        assert (hello["status"], hello["sample_rate"], hello["use_server_vad"]) == ("connected", 16_000, False)
        assert "resumed" not in hello
        socket.send_bytes(_loud(32_000))
        socket.send_text('{"action": "flush"}')
        final = _final(socket)
        assert (final["utterance"], final["ending"], final["committed"]) == (1, "flush", final["text"])
        assert final["text"].startswith("one two")


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


def test_a_client_that_comes_back_gets_the_finals_that_it_lacks(client):
    """By the number of the last one that it has; the others are not told twice."""
    with _socket(client) as socket:
        identity = socket.receive_json()["session_id"]
        texts = []
        for _ in range(2):
            socket.send_bytes(_loud(24_000))
            socket.send_text('{"action": "flush"}')
            texts.append(_final(socket)["text"])
        for received in (0, 1, 2):
            with _socket(client, f"&session_id={identity}&received={received}") as again:
                again.receive_json()
                again.send_text('{"action": "ping"}')
                told = iter(again.receive_json, {"status": "pong"})
                assert [message["text"] for message in told if message.get("is_final")] == texts[received:]


def test_a_client_that_closed_in_order_finds_its_final_when_it_comes_back(client):
    """Closing ends the utterance as a flush does: it need not wait for its last words before it closes."""
    with _socket(client) as socket:
        identity = socket.receive_json()["session_id"]
        socket.send_bytes(_loud(32_000))
    with _socket(client, f"&session_id={identity}") as again:
        again.receive_json()
        final = _final(again)
    assert (final["utterance"], final["ending"]) == (1, "flush")
    assert final["text"].startswith("one two")


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


def test_the_connection_that_lost_its_session_is_told(client):
    """With its own close code: a client does not come back for it, or the two would take it in turns."""
    with _socket(client) as first:
        identity = first.receive_json()["session_id"]
        with _socket(client, f"&session_id={identity}") as second:
            assert second.receive_json()["resumed"] is True
            assert first.receive_json()["error"]["code"] == "session_taken"
            with pytest.raises(WebSocketDisconnect) as closed:
                first.receive_json()
            assert closed.value.code == 4009


def test_a_wrong_action_is_told_and_the_session_goes_on(client):
    """Words that are no action, an unknown one, a language that is none."""
    with _socket(client) as socket:
        socket.receive_json()
        for text in ("hello", '{"action": "dance"}', '{"action": "config", "language": "tlh!"}'):
            socket.send_text(text)
            assert socket.receive_json()["error"]["type"] == "invalid_request_error"
        socket.send_text('{"action": "ping"}')
        assert socket.receive_json() == {"status": "pong"}
