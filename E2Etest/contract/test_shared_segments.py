"""The playlist of a shared session, as a player reads it: other people's parsers, and addresses from the playlist."""

import time
from urllib.parse import urljoin

import httpx
import m3u8
import pytest
import webvtt

from asr_server.features.translation.conftest import ScriptedLlm, translation
from E2Etest.live.readers import error, reader, say, share, until
from E2Etest.live.session import open_session, pieces

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]
_WAIT_S = 60


def _playlist(server, link, **query):
    """The playlist, and the words of each segment that it lists."""
    with httpx.Client(base_url=server.base) as player:  # without a key
        answer = player.get(link["playlist"], params=query)
        assert answer.headers["content-type"] == "application/vnd.apple.mpegurl"
        playlist = m3u8.loads(answer.text)
        files = [player.get(urljoin(link["playlist"], segment.uri)) for segment in playlist.segments]
    assert {file.headers["content-type"] for file in files} <= {"text/vtt; charset=utf-8"}
    stamp = f"X-TIMESTAMP-MAP=MPEGTS:{query.get('mpegts', 0)},LOCAL:00:00:00.000"
    assert all(file.text.splitlines()[1] == stamp for file in files)
    return playlist, [" ".join(cue.text for cue in webvtt.from_string(file.text)).split() for file in files]


def test_a_player_gets_what_was_said_and_the_end(guarded, speech):
    """The last words come with the end of the session, after which the playlist stays for a while."""
    with open_session(guarded) as socket:
        link = share(guarded, socket)
        playlist, found = _playlist(guarded, link)
        assert (playlist.is_endlist, found) == (False, [])
        with reader(guarded, link) as readers:
            said = say(socket, speech)
            for piece in pieces(bytes(12 * 32_000), 32_000):
                socket.send(piece)
            until_s = time.monotonic() + _WAIT_S
            while not found and time.monotonic() < until_s:
                playlist, found = _playlist(guarded, link)
            assert (playlist.is_endlist, found[0][0]) == (False, said.split()[0])
            socket.close(4001)  # the client will not come back
            until(readers, "end")
    playlist, found = _playlist(guarded, link, mpegts=900_000)
    assert playlist.is_endlist
    shown = [word for segment in found for word in segment]
    assert list(dict.fromkeys(shown)) == list(dict.fromkeys(said.split()))


def test_the_playlist_has_the_language_of_its_reader(start, speech):
    """The segments have it too."""
    with ScriptedLlm() as llm, start(OPENAI_BASE_URL=llm.base_url, TRANSLATE_MODEL="scripted") as server:
        with open_session(server) as socket:
            link = share(server, socket, languages=["de"])
            with reader(server, link, "de") as german:
                said = say(socket, speech)
                socket.close(4001)
                until(german, "end")
        playlist, found = _playlist(server, link, language="de")
    assert playlist.is_endlist
    assert {word for segment in found for word in segment} == set(translation(said).split())


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("segments/99.vtt", "session_not_found"),
        ("segments/x.vtt", "invalid_value"),
        ("captions.m3u8?mpegts=-1", "invalid_value"),
        ("captions.m3u8?language=de", "invalid_value"),
    ],
)
def test_what_the_playlist_does_not_have_is_an_error(live_server, path, code):
    """An error of the playlist has a code, as all errors have."""
    with open_session(live_server) as socket:
        address = urljoin(share(live_server, socket)["playlist"], path)
        assert error(live_server.client.get(address)) == code
