"""A live session that is shared through a gateway."""

import pytest

from E2Etest.live.readers import reader, say, share, until
from E2Etest.live.session import open_session
from E2Etest.process import running

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.websocket, pytest.mark.timeout(300)]


def test_a_reader_without_a_key_reads_what_is_said_to_a_gateway(tmp_path, speech):
    """The link is made by the session's id and key as without a gateway, and its stream passes as it comes."""
    with running(tmp_path / "log", GATEWAY_MODE="true", API_KEYS="sk-canary-first") as server:
        with open_session(server) as socket:
            link = share(server, socket)
            with reader(server, link) as found:
                next(found)
                said = say(socket, speech)
                assert until(found, "final")[-1]["text"] == said
                address = f"/v1/live/{socket.hello['session_id']}/share/{link['token']}"
                assert server.client.delete(address).status_code == 204
                assert list(found) == [{"type": "end", "reason": "revoked"}]
        assert link["token"] not in server.log()
