"""Twenty minutes of mixed traffic at four fifths of what the machine can do, with a fault every half minute.

The engine is in the process of the server: an engine process that is killed begins anew, and so would its memory, of
which a slope is asked here. What callers see when it dies under load is shown by `E2Etest/test_engine_process.py`.
"""

import os
import random
import threading
import time

import numpy as np
import pytest

from E2Etest.chaos.soak_faults import FAULTS, UPLOAD_MB, Faults
from E2Etest.chaos.soak_traffic import HANG_S, Callers, Ledger, Traffic, arrive, capacity
from E2Etest.drive.process import running
from E2Etest.drive.procfs import fork_server, resident_mb

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(0)]

SOAK_S = float(os.environ.get("SOAK_S", "1200"))
CALIBRATION_S = min(30.0, SOAK_S / 6)
WARM_UP = 0.25  # of the time, before memory is watched: caches fill, the C library sees its busiest moments
SHARE = 0.8
FAULT_EVERY_S = 30.0


def _break(server, ledger, over_s):
    faults, number = Faults(server), 0
    while time.monotonic() + FAULT_EVERY_S < over_s:
        time.sleep(FAULT_EVERY_S)
        name = FAULTS[number % len(FAULTS)]
        ledger.enter(name, getattr(faults, name))
        number += 1


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


def _peaks(samples):
    """The most memory of a minute, in the minute when it was most and in the last."""
    began_s = samples[0][0]
    peaks_mb = {}
    for at_s, held_mb in samples:
        minute = int((at_s - began_s) / 60)
        peaks_mb[minute] = max(peaks_mb.get(minute, 0.0), held_mb)
    most = max(peaks_mb, key=peaks_mb.get)
    last = max(peaks_mb)
    return f"at most {peaks_mb[most]:.0f} MiB in minute {most + 1}, {peaks_mb[last]:.0f} in minute {last + 1}"


def _at_rest(health):
    busy = [health["queue"][name] for name in ("final", "partial", "interactive", "bulk", "running", "audio_held_s")]
    return not any(busy) and health["jobs"] == 0


@pytest.mark.guarantee("soak")
def test_it_stays_as_it_was(tmp_path, measured, note):
    """Every answer is that of the quiet server, every fault hurts its own caller alone, and memory does not grow."""
    with running(
        tmp_path / "log", PRELOAD="true", IDLE_TIMEOUT="0", LOG_LEVEL="INFO", MAX_UPLOAD_MB=str(UPLOAD_MB)
    ) as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        traffic, warm, ledger = Traffic(Callers(server)), Ledger(), Ledger()
        possible = capacity(traffic, warm, CALIBRATION_S)
        samples, over, began_s = [], threading.Event(), time.monotonic()
        over_s = began_s + SOAK_S
        breaking = threading.Thread(target=_break, args=(server, ledger, over_s))
        watching = threading.Thread(target=_watch, args=(server, samples, over))
        breaking.start()
        watching.start()
        arrive(traffic, ledger, SHARE * possible, over_s, random.Random(1))
        breaking.join()
        traffic.close()
        over.set()
        watching.join()
        took_s = time.monotonic() - began_s
        slope, held_mb = _slope(samples)
        faults = sum(ledger.done[name] for name in FAULTS)
        turns = ledger.done.total() - faults
        note(
            f"{turns} requests in {took_s / 60:.0f} min ({turns / took_s:.1f}/s of {possible:.1f}/s possible), "
            f"{faults} faults, slowest answer {ledger.slowest_s:.1f} s, memory {held_mb:.0f} MiB"
        )
        np.savetxt(tmp_path / "memory", samples)

        errors = warm.errors + ledger.errors
        print(*errors, _peaks(samples), sep="\n")
        measured("errors", len(errors))
        assert ledger.slowest_s < HANG_S
        server.wait_for(_at_rest)
        log = server.log()
        assert "Traceback" not in log
        assert [line for line in log.splitlines() if " ERROR " in line] == []
        measured("slope_percent", 100 * slope)
