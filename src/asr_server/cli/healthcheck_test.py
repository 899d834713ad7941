"""The container's health check against servers that answer, refuse and are not there."""

import pytest

from asr_server.cli.healthcheck import healthcheck
from asr_server.client.conftest import answering
from asr_server.core.settings import Settings


@pytest.mark.parametrize(
    ("host", "status", "code"), [("127.0.0.1", 200, 0), ("0.0.0.0", 200, 0), ("localhost", 503, 1), ("0.0.0.0", 500, 1)]
)
def test_only_200_is_healthy(host, status, code):
    """A server that listens on all addresses is asked on one of them."""
    with answering(b"", status) as (base, _):
        port = int(base.rpartition(":")[2])
        assert healthcheck(Settings(_env_file=None, host=host, port=port, allow_anonymous=True)) == code
