"""How the query decides when an utterance ends. E2Etest/contract tests the rest of the protocol."""

import pytest

PATH = "/ws/transcribe?use_server_vad=false"


def _socket(client, query="", **options):
    return client.socket(f"{PATH}{query}", **options)


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
