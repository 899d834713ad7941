"""Mixed traffic while faults happen: what the callers get, and what the server holds at the end.

In both tests every answer must be the one of the quiet server, and no turn may hang.
"""

import os
import random
import threading
import time
from functools import partial

import numpy as np
import pytest

from E2Etest.chaos.engine_faults import SHARES_OF_FAULTS, EngineFaults, FaultTimes, RetryingCallers
from E2Etest.chaos.soak_faults import FAULTS, UPLOAD_MB, Faults
from E2Etest.chaos.soak_traffic import HANG_S, Callers, Ledger, Traffic, arrive, capacity
from E2Etest.drive.process import at_rest, running
from E2Etest.drive.procfs import fork_server, resident_mb

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

SOAK_S = float(os.environ.get("SOAK_S", "1200"))
SEED = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(10**6))
CALIBRATION_S = min(30.0, SOAK_S / 10)
WARM_UP = 0.25  # of the time, before memory is watched: caches fill, the C library sees its busiest moments
FAULT_EVERY_S = 30.0
PAUSES_S = (2.0, 8.0)  # between two faults of processes
LAST_S = 30.0  # without such faults, for what they have delayed
SETTINGS = {"PRELOAD": "true", "IDLE_TIMEOUT": "0", "LOG_LEVEL": "INFO", "MAX_UPLOAD_MB": str(UPLOAD_MB)}


def _soaked(server, traffic, break_, seconds, share):
    """Turns for so many seconds, at this share of what is possible, beside faults that another thread makes.

    Returns the ledger of the turns, the errors of turns and faults, and a summary.
    """
    warm, turns, faults = Ledger(), Ledger(), Ledger()
    possible = capacity(traffic, warm, CALIBRATION_S)
    began_s = time.monotonic()
    over_s = began_s + seconds
    breaking = threading.Thread(target=break_, args=(faults, over_s))
    breaking.start()
    arrive(traffic, turns, share * possible, over_s, random.Random(SEED))
    breaking.join()
    traffic.callers.close()
    took_s = time.monotonic() - began_s
    errors = warm.errors + turns.errors + faults.errors
    print(f"SOAK_SEED={SEED}", faults.done, turns.done, *errors, sep="\n")
    rate = turns.done.total() / took_s
    summary = f"{turns.done.total()} turns in {took_s / 60:.0f} min ({rate:.1f}/s of {possible:.1f}/s possible), "
    return turns, errors, summary + f"{faults.done.total()} faults, slowest turn {turns.slowest_s:.0f} s"


def _watch(server, samples, over):
    """Resident MiB of the server and the decoders' parent, each second."""
    while not over.wait(1.0):
        parent = fork_server(server.process.pid)
        held = resident_mb(server.process.pid) + (resident_mb(parent) if parent else 0.0)
        samples.append((time.monotonic(), held))


def _slope(samples):
    """Memory's growth an hour as a share of what is held, by linear regression behind the warm-up, and what is held."""
    times_s, held_mb = np.array(samples[int(WARM_UP * len(samples)) :]).T
    a_second = np.polyfit(times_s - times_s[0], held_mb, 1)[0]
    return 3_600 * a_second / held_mb.mean(), held_mb.mean()


@pytest.mark.guarantee("soak")
def test_it_stays_as_it_was(tmp_path, measured, note):
    """Twenty minutes at four fifths of what the machine can do, with a fault every half minute: each hurts its own
    caller alone, and memory does not grow. The engine runs in the process whose memory is watched."""
    with running(tmp_path / "log", **SETTINGS) as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        samples, over, faults = [], threading.Event(), Faults(server)

        def break_(ledger, over_s):
            number = 0
            while time.monotonic() + FAULT_EVERY_S < over_s:
                time.sleep(FAULT_EVERY_S)
                name = FAULTS[number % len(FAULTS)]
                ledger.enter(name, getattr(faults, name))
                number += 1

        watching = threading.Thread(target=_watch, args=(server, samples, over))
        watching.start()
        turns, errors, summary = _soaked(server, Traffic(Callers(server)), break_, SOAK_S, share=0.8)
        over.set()
        watching.join()
        slope, held_mb = _slope(samples)
        note(f"{summary}, memory {held_mb:.0f} MiB")
        np.savetxt(tmp_path / "memory", samples)
        measured("errors", len(errors))
        assert turns.slowest_s < HANG_S
        server.wait_for(lambda health: at_rest(health) and health["jobs"] == 0)
        log = server.log()
        assert "Traceback" not in log
        assert [line for line in log.splitlines() if " ERROR " in line] == []
        measured("slope_percent", 100 * slope)


@pytest.mark.guarantee("engine-faults")
def test_callers_see_nothing_but_invitations_to_try_again(tmp_path, measured, note):
    """Nine minutes in which processes are paused, stopped and killed, and files deleted: every turn ends with the words
    of the quiet server, and every refusal invites a retry (503 with `Retry-After`; the codes of these in an event
    stream; close codes 1012 and 1013) and comes within two seconds of a fault. A fault is a signal that is sent, a
    deletion, or the end of a process that was stopped for good, when the server kills it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with running(tmp_path / "log", ENGINE_PROCESS="true", TMPDIR=str(temporary), **SETTINGS) as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        times, chance = FaultTimes(), random.Random(SEED + 1)
        faults = EngineFaults(server, temporary, times, random.Random(SEED + 2))

        def break_(ledger, over_s):
            while time.monotonic() < over_s - LAST_S:
                (name,) = chance.choices(list(SHARES_OF_FAULTS), list(SHARES_OF_FAULTS.values()))
                ledger.enter(name, partial(faults.happens, name))
                time.sleep(chance.uniform(*PAUSES_S))

        traffic = Traffic(RetryingCallers(server, times))
        # Half of what is possible: starts of processes take time too.
        _, errors, summary = _soaked(server, traffic, break_, 0.45 * SOAK_S, share=0.5)
        latest = f"the latest {times.latest_s:.1f} s after a fault"
        note(f"{summary}, {times.refused.total()} invitations to try again, {latest}")
        errors += times.unexcused
        for error in errors[:5]:
            note(f"unexpected: {error}")
        measured("unexpected", len(errors))
        server.wait_for(at_rest)
        assert server.client.get("/readyz").status_code == 200
        assert "Traceback" not in server.log()
