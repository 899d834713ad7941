"""The scripted engine of the tests of replicas, which knows the words of the bundled recording."""

from E2Etest.replicas.conftest import scripted  # noqa: F401 - a fixture
