import json
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from asr_server.cli.failure import Exit
from asr_server.cli.main import main
from asr_server_sizing.profile import Profile, StepCosts

PROFILE = Profile("a model", "a machine", "a test", "2026-11-23", 8, 8, StepCosts(0.01, 0.001, 0.02, 1e-4))


@pytest.fixture
def costs(tmp_path, monkeypatch):
    """A file of costs; the environment has no settings."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(asdict(PROFILE)))
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--gpu"),
        (("--costs", "costs.json"), "--live N, --recordings S"),
        (("--costs", "costs.json", "--live", "-1"), "from 0 to"),
        (("--costs", "costs.json", "--live", "1.5"), "from 0 to"),
        (("--costs", "costs.json", "--recordings", "nan"), "from 0 to"),
        (("--costs", "costs.json", "--live", "2", "--voiced", "0"), "a share"),
        (("--costs", "costs.json", "--live", "2", "--p95", "0"), "above 0"),
        (("--costs", "none.json", "--live", "2"), "cannot be read: No such file"),
        (("--costs", ".", "--live", "2"), "cannot be read: Is a directory"),
        (("--costs", "costs.json", "--live", "2", "--save", "x"), "--save needs --measure"),
        (("--gpu", "h100", "--live", "2"), "belong together"),
        (("--gpu", "h100", "--measure", "--live", "2"), "not allowed with"),
        (("--gpu", "a100", "--model", "1.7B", "--live", "2"), "asr-server size --measure --save costs.json"),
        (("--gpu", "h100", "--model", "7B", "--live", "2"), "--gpu h100 --model 0.6B"),
    ],
)
def test_wrong_arguments_have_an_error_that_says_what_to_do(costs, capsys, arguments, says):
    """Nothing is guessed, least of all a machine that nobody measured."""
    try:
        code = main(["size", *arguments])
    except SystemExit as error:  # of argparse
        code = error.code
    assert code == Exit.USAGE
    assert says in capsys.readouterr().err


def test_a_file_that_is_no_measurement_is_refused(costs, capsys):
    """The error has the place in the file."""
    costs.write_text(json.dumps(asdict(PROFILE) | {"slots": "many"}))
    assert main(["size", "--costs", str(costs), "--live", "2"]) == Exit.USAGE
    assert "slots" in capsys.readouterr().err


def test_figures_are_one_json_object(costs, capsys):
    """The needed replicas and the spare ones, what one of them has, and what is estimated."""
    assert (
        main(["size", "--costs", str(costs), "--live", "24", "--recordings", "1", "--spare", "2", "--json"])
        == Exit.DONE
    )
    found = json.loads(capsys.readouterr().out)
    assert found["replicas"] == found["needed_replicas"] + 2
    assert found["one_replica"]["live"] * found["needed_replicas"] >= 24
    assert found["one_replica"]["partial_s"]["p95"] <= found["target_p95_s"] == 1.0
    assert any("event loop" in sentence for sentence in found["estimates"])


def test_a_larger_batch_than_was_measured_is_an_estimate(costs, capsys, monkeypatch):
    """MAX_BATCH counts, and the table says that its costs are extended."""
    monkeypatch.setenv("MAX_BATCH", "64")
    assert main(["size", "--costs", str(costs), "--recordings", "5"]) == Exit.DONE
    printed = capsys.readouterr().out
    assert "64 rows in a batch" in printed
    assert "more than 8 rows were not measured" in printed


def test_a_target_that_nothing_meets_fails(costs, capsys):
    """A single session takes longer already."""
    assert main(["size", "--costs", str(costs), "--live", "3", "--p95", "0.001"]) == Exit.FAILED
    assert "alone" in capsys.readouterr().err


@pytest.fixture
def server():
    """Sets what `/health` of a server answers; its address."""
    body = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever).start()
        yield f"http://127.0.0.1:{listening.server_port}", body
        listening.shutdown()


CAPACITY = {
    "streams": 40,
    "streams_measured": True,
    "audio_s_per_s": 100.0,
    "audio_measured": False,
    "free_streams": 39,
}


def test_a_running_server_says_how_many_of_it_are_needed(server, capsys):
    """The shares of live sessions and recordings are added; what it guesses is said to be a guess."""
    address, body = server
    body |= {"model_id": "demo", "capacity": CAPACITY}
    assert main(["size", "--server", address, "--live", "100", "--recordings", "60", "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["needed_replicas"], found["replicas"]) == (4, 5)
    assert "recordings is a guess" in found["estimates"][0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [({}, "does not say"), ({"model_id": "m", "capacity": {**CAPACITY, "streams": 0}}, "none of that")],
)
def test_a_server_that_does_not_say_is_an_error(server, capsys, answer, says):
    """An older one, or one that can take nothing."""
    address, body = server
    body |= answer
    assert main(["size", "--server", address, "--live", "100"]) == Exit.FAILED
    assert says in capsys.readouterr().err


def test_no_server_is_its_own_exit_code(capsys):
    """The code is that of every command."""
    assert main(["size", "--server", "http://127.0.0.1:9", "--live", "100"]) == Exit.NO_SERVER
    assert "no server answers" in capsys.readouterr().err
