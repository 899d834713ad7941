"""After each test: the server is alive, and nothing in its log is a fault of ours."""

import re

import pytest


@pytest.fixture(autouse=True)
def _unhurt(guarded):
    before = len(guarded.log())
    yield
    assert guarded.client.get("/livez").status_code == 200
    written = guarded.log()[before:]
    faults = re.findall(r"^.* ERROR .*$|^Traceback.*$|^[\w.]+(?:Error|Exception)\b.*$", written, re.MULTILINE)
    assert faults == []
