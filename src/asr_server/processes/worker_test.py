"""The loop of a worker process, in this process."""

import io

import pytest

from asr_server.processes import messages, sandbox, worker


@pytest.fixture(autouse=True)
def no_cpu_limit(monkeypatch):
    """Leave the limit out: it would be that of the tests."""
    monkeypatch.setattr(sandbox, "limit_cpu_from_now", lambda cpu_s: None)


def answered(*requests):
    """The answers of a worker that keeps the data of each number and answers with all that it keeps."""

    def answer(content, data, kept):
        if data == b"bad":
            raise MemoryError
        kept[content["number"]] = data
        return messages.packed({"numbers": list(kept)}, b"".join(kept.values()))

    sent = (messages.packed({"number": number, "dropped": dropped}, data) for number, dropped, data in requests)
    received = io.BytesIO()
    worker.serve(io.BytesIO(b"".join(sent)), received, answer, 1.0)
    received.seek(0)
    return list(iter(lambda: messages.read(received.read), None))


def test_what_is_dropped_is_forgotten():
    """The data is forgotten before the request that says so is answered, and also if it was never there."""
    assert answered((1, [], b"a"), (2, [], b"b"), (3, [1, 77], b"c")) == [
        ({"numbers": [1]}, b"a"),
        ({"numbers": [1, 2]}, b"ab"),
        ({"numbers": [2, 3]}, b"bc"),
    ]


def test_a_request_that_fails_is_the_only_one():
    """Data that is kept stays."""
    assert answered((1, [], b"a"), (2, [], b"bad"), (3, [], b"c"))[1:] == [
        ({"error": "MemoryError"}, b""),
        ({"numbers": [1, 3]}, b"ac"),
    ]
