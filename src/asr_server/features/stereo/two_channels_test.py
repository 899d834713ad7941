"""Two channels over one live socket: answers, places and resuming. Their words are tested in E2Etest/contract."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from asr_server.core.errors import InvalidInput
from asr_server.features.stereo import two_channels


def _of(state, received_bytes, actions):
    return {"state": state, "received_bytes": received_bytes, "actions": actions}


def _frame(**fields):
    return json.dumps({"action": "continue", "state": "first~second", **fields})


@pytest.mark.parametrize(
    ("first", "second", "received_bytes", "actions"),
    [((96, 2), (64, 3), 128, 2), ((64, 3), (96, 2), 128, 2), ((0, 0), (8, 1), 0, 0), ((7, 1), (9, 1), 12, 1)],
)
def test_both_go_on_from_what_either_needs_first(first, second, received_bytes, actions):
    """In whole frames of both channels."""
    joined = two_channels.joined_continuation(_of("first", *first), _of("second", *second))
    assert joined == _of("first~second", received_bytes, actions)


def test_each_channel_gets_its_state_and_what_was_shown_of_it():
    """By its own numbers. Where nothing was shown the next utterance is meant."""
    shown = [{"utterance": 7, "committed": "turn on", "end": 1.5, "speakers": []}, {"utterance": 4, "committed": "so"}]
    first, second = map(json.loads, two_channels.frames_of_channels(_frame(channels=shown)))
    assert first == {**_expected("first", 4), "committed": "turn on", "end": 1.5}
    assert second == {**_expected("second", 2), "committed": "so"}
    for channels in ([], [{}], [{}, {}]):
        found = [json.loads(frame) for frame in two_channels.frames_of_channels(_frame(channels=channels))]
        assert found == [_expected("first", 0), _expected("second", 0)]


def _expected(state, utterance):
    return {"action": "continue", "state": state, "utterance": utterance, "committed": "", "end": 0.0}


@pytest.mark.parametrize("number", range(1, 9))
def test_a_number_comes_back_as_it_was(number):
    """Odd ones are those of the first channel."""
    channel = (number - 1) % 2
    own = two_channels.own_number(number, channel)
    assert two_channels.common_number(own, channel) == number


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (_frame(state="first"), "state"),
        (_frame(state="first~second~third"), "state"),
        (_frame(state=400_000 * "A"), None),
        (_frame(channels={}), "channels"),
        (_frame(channels=[{}, {}, {}]), "channels"),
        (_frame(channels=[{"utterance": -1}]), "channels"),
        (_frame(channels=[{"utterance": 10**12}]), "channels"),
        (_frame(channels=[{"committed": 7}]), "channels"),
        (_frame(channels=[{"end": float("inf")}]), "channels"),
        (_frame(action="flush"), "action"),
        ("{", None),
        ("[]", "action"),
    ],
)
def test_a_wrong_frame_is_refused_with_the_field_at_fault(text, param):
    """Before a session is opened; the rest of it is checked by the session of each channel."""
    with pytest.raises(InvalidInput) as refused:
        two_channels.frames_of_channels(text)
    assert refused.value.param == param


PATH = "/ws/transcribe?endpointing=manual&channels=2"
KEY = {"api-key": "sk-first"}


def _answers(socket, action, count):
    socket.send_text(action)
    return [socket.receive_json() for _ in range(count)]


def test_each_channel_has_its_own_final_and_other_actions_one_answer(serve):
    """A flush ends an utterance in both; numbers are odd for channel 1 and even for channel 2. An error is of both."""
    with serve().socket(PATH) as socket:
        assert socket.receive_json()["channels"] == 2
        for number in (1, 2):
            finals = _answers(socket, '{"action": "flush"}', 2)
            found = sorted((final["speaker"], final["utterance"], final["ending"]) for final in finals)
            assert found == [("A", 2 * number - 1, "flush"), ("B", 2 * number, "flush")]
        socket.send_bytes(bytes(4 * 16_000))
        _answers(socket, '{"action": "flush"}', 2)
        (settled,) = _answers(socket, '{"action": "settled"}', 1)
        assert (settled["seconds"], settled["utterance"]) == (1.0, 6)
        assert _answers(socket, '{"action": "reset"}', 1) == [{"status": "buffer_reset"}]
        (configured,) = _answers(socket, '{"action": "config", "language": "de"}', 1)
        assert (configured["status"], configured["language"]) == ("configured", "de")
        assert _answers(socket, '{"action": "ping"}', 1) == [{"status": "pong"}]
        refused = _answers(socket, '{"action": "dance"}', 2)
        assert sorted((error["speaker"], error["code"]) for error in refused) == [
            ("A", "invalid_value"),
            ("B", "invalid_value"),
        ]


@pytest.mark.parametrize("sizes", [(1,), (1_001, 2, 4_099)])
def test_a_client_that_comes_back_sends_on_from_the_last_whole_frame(serve, sizes):
    """A frame has a sample of each channel; what arrived of the next one is sent again."""
    client = serve()
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
        for size in sizes:
            socket.send_bytes(bytes(size))
        _answers(socket, '{"action": "settled"}', 1)
    with client.socket(f"{PATH}&session_id={identity}&received=0,0") as socket:
        hello = socket.receive_json()
        assert (hello["session_id"], hello["resumed"]) == (identity, True)
        assert hello["received_bytes"] == sum(sizes) // 4 * 4


def test_a_client_that_comes_back_gets_of_each_channel_the_finals_that_it_lacks(serve):
    """By the last one that it has of each."""
    client = serve()
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
        for _ in range(3):
            _answers(socket, '{"action": "flush"}', 2)
    with client.socket(f"{PATH}&session_id={identity}&received=1,4") as socket:
        socket.receive_json()
        assert sorted(socket.receive_json()["utterance"] for _ in range(3)) == [3, 5, 6]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("&session_id=live_1~live_2&received=5", "invalid_value"),
        ("&session_id=live_1~live_2&received=5,-4", "invalid_value"),
        ("&session_id=live_1&received=5,4", "session_not_found"),
        ("&session_id=live_1~live_2~live_3", "session_not_found"),
        ("&session_id=live_1~live_2", "session_not_found"),
        ("&session_id=live_1~live_1", "session_not_found"),
        ("&sample_rate=7", "invalid_value"),
        ("&model=none", "model_not_found"),
    ],
)
def test_what_is_wrong_is_said_once_and_ends_the_connection(serve, query, code):
    """With the close code of the error, as for one channel."""
    with serve().socket(f"{PATH}{query}") as socket:
        assert socket.receive_json()["code"] == code
        with pytest.raises(WebSocketDisconnect):
            socket.receive_json()


def test_both_sessions_have_one_place_which_they_keep_and_lose_together(serve):
    """A key with one place can resume them, and gets the place of those that it left behind."""
    client = serve(api_keys="sk-first", key_max_requests=1)
    with client.socket(PATH, headers=KEY) as socket:
        first = socket.receive_json()["session_id"]
        with pytest.raises(WebSocketDenialResponse), client.socket(PATH, headers=KEY):
            pass
    with client.socket(f"{PATH}&session_id={first}", headers=KEY) as socket:
        assert socket.receive_json()["resumed"] is True
    assert client.get("/health", headers=KEY).json()["live"]["sessions"] == 2
    with client.socket(PATH, headers=KEY) as socket:
        second = socket.receive_json()["session_id"]
        assert client.get("/health", headers=KEY).json()["live"]["sessions"] == 2
    with client.socket(f"{PATH}&session_id={first}", headers=KEY) as socket:
        assert socket.receive_json()["code"] == "session_not_found"
    assert second != first


def test_a_second_connection_takes_both_sessions_over(serve):
    """The first is told so once, and closed with 4009."""
    client = serve()
    with client.socket(PATH) as first:
        identity = first.receive_json()["session_id"]
        with client.socket(f"{PATH}&session_id={identity}") as second:
            assert second.receive_json()["resumed"] is True
            assert first.receive_json()["code"] == "session_taken"
            with pytest.raises(WebSocketDisconnect) as closed:
                first.receive_json()
            assert closed.value.code == 4009
            assert len(_answers(second, '{"action": "flush"}', 2)) == 2


@contextmanager
def _continued(client, identity, state):
    with client.socket(f"{PATH}&handover=true&session_id={identity}") as socket:
        socket.send_text(json.dumps({"action": "continue", "state": state}))
        yield socket


def test_a_session_of_which_one_half_has_ended_is_continued_by_the_next_try(serve):
    """The half that is still here is not resumed beside one that begins anew, and keeps no place."""
    client = serve()
    with client.socket(f"{PATH}&handover=true") as socket:
        hello = socket.receive_json()
        identity, state = hello["session_id"], hello["continuation"]["state"]
        socket.send_bytes(bytes(4_000))
        _answers(socket, '{"action": "settled"}', 1)
    client.portal.call(client.state.services.live._drop, identity.split("~")[1])
    with _continued(client, identity, state) as socket:
        answer = socket.receive()
        assert (answer["type"], answer.get("code")) == ("websocket.close", 1013)
    assert client.get("/health").json()["live"]["sessions"] == 0
    with _continued(client, identity, state) as socket:
        found = socket.receive_json()
    assert (found["continued"], found["received_bytes"], found["actions"]) == (True, 0, 0)
