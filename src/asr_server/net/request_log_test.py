"""What the request log returns, writes and counts; with a real server see E2Etest/contract/test_metrics.py."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from asr_server.core.settings import Settings
from asr_server.net import errors
from asr_server.net.access import AccessRules
from asr_server.net.edge import Edge
from asr_server.net.request_log import RequestMetrics


@pytest.fixture
def app():
    """An app without routes: a test adds its own."""
    app = FastAPI()
    errors.install_handlers(app)
    app.add_middleware(Edge, rules=AccessRules.of(Settings(_env_file=None, host="0.0.0.0", allow_anonymous=True)))
    app.state.registry = CollectorRegistry()
    app.state.services = SimpleNamespace(request_metrics=RequestMetrics(app.state.registry))
    return app


def _counted(app, name, **labels):
    return app.state.registry.get_sample_value(name, labels)


@pytest.mark.parametrize(("path", "faults"), [("/readyz", 0), ("/livez", 0), ("/health", 1)])
def test_a_probe_that_says_no_is_no_error_of_the_server(app, path, faults):
    """A balancer asks every few seconds while a model is loaded: that would look like a server that fails."""
    app.get(path)(lambda: Response(status_code=503))
    with TestClient(app) as client:
        assert client.get(path).status_code == 503
    assert _counted(app, "asr_errors_total", surface="http", code="internal_error") == faults
    assert _counted(app, "asr_http_requests_total", route=path, method="GET", status="5xx") == 1


@pytest.mark.parametrize(("method", "status"), [("GET", 404), ("PUT", 405)])
def test_unknown_paths_and_methods_are_counted_as_errors(app, method, status):
    """They have no code of their own, and a client that asks for them thousands of times has to show."""
    app.get("/here")(lambda: "yes")
    with TestClient(app) as client:
        assert client.request(method, "/here" if status == 405 else "/nowhere").status_code == status
    assert _counted(app, "asr_errors_total", surface="http", code="other") == 1


def test_durations_are_seconds(app):
    """The sum of the histogram is what the requests took, and no more than the time that has passed."""

    @app.get("/here")
    async def slow():
        await asyncio.sleep(0.02)

    began_s = time.perf_counter()
    with TestClient(app) as client:
        client.get("/here")
    passed_s = time.perf_counter() - began_s
    assert 0.02 <= _counted(app, "asr_http_request_seconds_sum", route="/here") <= passed_s


@pytest.mark.parametrize(("path", "is_openais"), [("/v1/models", True), ("/health", False)])
def test_openais_paths_have_openais_headers(app, path, is_openais):
    """Its version and the time that the request took, in whole milliseconds."""
    app.get(path)(lambda: "yes")
    with TestClient(app) as client:
        headers = client.get(path).headers
    assert ("openai-version" in headers) is is_openais
    assert headers.get("openai-processing-ms", "none").isdigit() is is_openais


def test_a_request_whose_answer_never_began_counts_as_4xx():
    registry = CollectorRegistry()
    RequestMetrics(registry).request("/here", "POST", 0, 1.0)
    labels = {"method": "POST", "route": "/here", "status": "4xx"}
    assert registry.get_sample_value("asr_http_requests_total", labels) == 1
