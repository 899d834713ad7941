"""A server that dies under load."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from E2Etest import recordings
from E2Etest.replicas.load import calling
from E2Etest.replicas.rig import balanced

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

PAUSE = np.zeros(3 * 16_000, np.int16)


@pytest.fixture
def long():
    """The bundled recording four times: as many spans."""
    return recordings.wav(np.tile(np.concatenate([recordings.samples(), PAUSE]), 4))


def _accepted_by_both(replicas):
    for server in replicas.servers.values():
        server.wait_for(lambda health: health["queue"]["audio_held_s"] > 0)


def test_no_answer_looks_complete_that_is_not(tmp_path, scripted):
    """SIGKILL under callers of every kind: what the dead server had accepted breaks visibly, everything else is right,
    and all is well with the other and with the one that follows."""
    with balanced(tmp_path, 2, **scripted) as replicas:
        with calling(replicas, recordings.sample()[1]) as callers:
            callers.wait_for_each_kind(1)
            replicas.kill(next(iter(replicas.servers)))
            callers.wait_for_each_kind(2)
            replicas.start()
            broken = len(callers.tally.broken)
            callers.wait_for_each_kind(2)
            assert len(callers.tally.broken) == broken
        assert callers.tally.wrong == []


def test_openais_client_repeats_what_a_dead_server_had_accepted(tmp_path, scripted, long):
    """With its own retries and nothing else: every caller gets its words. Without retries the same are told."""
    words = " ".join([recordings.sample()[1]] * 4)
    with balanced(tmp_path, 2, MAX_BATCH="1", **scripted) as replicas, ThreadPoolExecutor(12) as pool:
        patient, hasty = replicas.openai(max_retries=2), replicas.openai(max_retries=0)

        def call(client):
            try:
                return client.audio.transcriptions.create(file=("a.wav", long), model="whisper-1").text
            except (openai.InternalServerError, openai.APIConnectionError) as error:
                return type(error)

        calls = [(client, pool.submit(call, client)) for _ in range(6) for client in (patient, hasty)]
        _accepted_by_both(replicas)
        replicas.kill(next(iter(replicas.servers)))
        answers = [(client, each.result()) for client, each in calls]
    assert {answer for client, answer in answers if client is patient} == {words}
    told = {answer for client, answer in answers if client is hasty}
    assert told - {words}
    assert told - {words} <= {openai.InternalServerError, openai.APIConnectionError}
