"""Live audio in Opus, whose frames a conversation cannot state. Other encodings are conversations."""

import pytest

from E2Etest.drive import recordings
from E2Etest.drive.session import act, finals, open_session, pieces, upto_flush

pytestmark = pytest.mark.websocket


@pytest.mark.parametrize("form", ["packets", "ogg"])
def test_opus_is_heard(live_server, speech, said, form):
    """One packet in each frame, or an Ogg stream cut anywhere."""
    container = recordings.encoded("ogg", "libopus", speech)
    frames = recordings.packets(container) if form == "packets" else pieces(container, 1_000)
    with open_session(live_server, encoding="opus") as socket:
        for frame in frames:
            socket.send(frame)
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == [said]
