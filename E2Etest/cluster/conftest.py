"""One cluster with the demonstration model for all tests that change nothing in it."""

import importlib.util

import pytest

from E2Etest.cluster import process


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    """Two engine replicas, each with one thread."""
    if importlib.util.find_spec("ray") is None:
        pytest.fail("Ray is not installed: make .venv/.cluster, or pip install -r requirements-cluster.txt")
    with process.running(tmp_path_factory.mktemp("cluster") / "log") as cluster:
        yield cluster
