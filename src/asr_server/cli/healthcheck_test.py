"""The container's health check against servers that answer, refuse and are not there."""

import http.server
import threading
from contextlib import contextmanager

import pytest

from asr_server.cli.healthcheck import healthcheck
from asr_server.core.settings import Settings


@contextmanager
def _answering(status):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, *_):
            """Print nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


def _settings(**values):
    return Settings(_env_file=None, **values)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (500, 1)])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_only_200_is_healthy(status, code, host):
    """A server that listens on all addresses is asked on one of them."""
    with _answering(status) as port:
        assert healthcheck(_settings(host=host, port=port, allow_anonymous=True)) == code


def test_without_a_server_it_fails_with_one_line(capsys, tmp_path):
    """The line has no traceback, with TLS or without."""
    certificate = tmp_path / "cert.pem"
    certificate.write_text("")
    with _answering(200) as port:
        assert healthcheck(_settings(port=port, ssl_certfile=str(certificate))) == 1
    assert healthcheck(_settings(port=port)) == 1
    assert capsys.readouterr().err.count("\n") == 2
