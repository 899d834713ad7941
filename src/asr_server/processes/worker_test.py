"""The loop of a worker process, in this process."""

import io

from asr_server.processes import messages, sandbox, worker


def test_what_is_dropped_is_forgotten(monkeypatch):
    """Before the request that says so is answered. A request that fails is the only one, and kept data stays."""
    monkeypatch.setattr(sandbox, "limit_cpu_from_now", lambda cpu_s: None)  # it would be that of the tests

    def answer(content, data, kept):
        if data == b"bad":
            raise MemoryError
        kept[content["number"]] = data
        return messages.packed({"numbers": list(kept)}, b"".join(kept.values()))

    asked = ((1, [], b"a"), (2, [], b"bad"), (3, [], b"b"), (4, [1, 77], b"c"))
    sent = (messages.packed({"number": number, "dropped": dropped}, data) for number, dropped, data in asked)
    received = io.BytesIO()
    worker.serve(io.BytesIO(b"".join(sent)), received, answer, 1.0)
    received.seek(0)
    assert list(iter(lambda: messages.read(received.read), None)) == [
        ({"numbers": [1]}, b"a"),
        ({"error": "MemoryError"}, b""),
        ({"numbers": [1, 3]}, b"ab"),
        ({"numbers": [3, 4]}, b"bc"),
    ]
