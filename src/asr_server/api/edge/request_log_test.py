"""What the request log counts; the whole of it is in E2Etest/test_metrics.py and test_observability.py."""

from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Response
from starlette.testclient import TestClient

from asr_server.api.edge.request_log import RequestLog
from asr_server.api.metrics.metrics import Metrics


@pytest.mark.parametrize(("path", "errors"), [("/readyz", 0), ("/livez", 0), ("/health", 1)])
def test_a_probe_that_says_no_is_no_error_of_the_server(path, errors):
    """A balancer asks every few seconds while a model is loaded: that would look like a server that fails."""
    app = FastAPI()
    app.get(path)(lambda: Response(status_code=503))
    app.add_middleware(RequestLog)
    app.state.services = SimpleNamespace(metrics=Metrics())
    with TestClient(app) as client:
        assert client.get(path).status_code == 503
    counted = app.state.services.metrics.registry
    labels = {"surface": "http", "code": "internal_error"}
    assert counted.get_sample_value("asr_errors_total", labels) == errors
    of_route = {"route": path, "method": "GET", "status": "5xx"}
    assert counted.get_sample_value("asr_http_requests_total", of_route) == 1
