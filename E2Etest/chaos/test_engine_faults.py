"""Nine minutes of mixed traffic on a server while its processes are paused, stopped and killed, and its files deleted.

Counted as unexpected: every answer that is not the one of the quiet server, every turn that hangs, and every refusal
but those that invite a retry (503 with `Retry-After`; the codes of these in an event stream; close codes 1012 and 1013)
and come within two seconds of a fault. A fault is a signal that is sent, a deletion, or the end of a process that was
stopped for good, when the server kills it. A request may have begun at any time before or after the
fault. Callers repeat what was refused, and every turn must end with the right answer.
"""

import os
import random
import threading
import time
from collections import Counter
from functools import partial

import pytest

from E2Etest.chaos.engine_faults import SHARES_OF_FAULTS, EngineFaults, FaultTimes, RetryingCallers
from E2Etest.chaos.rig import at_rest
from E2Etest.chaos.soak_faults import UPLOAD_MB
from E2Etest.chaos.soak_traffic import SHARES, Ledger, Traffic, arrive, capacity
from E2Etest.drive.process import running

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(0)]

SOAK_S = float(os.environ.get("ENGINE_SOAK_S", "540"))
SEED = int(os.environ.get("ENGINE_SOAK_SEED") or random.SystemRandom().randrange(10**6))
CALIBRATION_S = min(20.0, SOAK_S / 6)
SHARE = 0.5  # of what is possible: starts of processes take time too
PAUSES_S = (2.0, 8.0)  # between two faults
LAST_S = 30.0  # without faults, for what they have delayed


def _break(faults, ledger, over_s, chance, done):
    """One fault after the other, until shortly before the end."""
    while time.monotonic() < over_s - LAST_S:
        (name,) = chance.choices(list(SHARES_OF_FAULTS), list(SHARES_OF_FAULTS.values()))
        ledger.enter(name, partial(faults.happens, name))
        done[name] += 1
        time.sleep(chance.uniform(*PAUSES_S))


@pytest.mark.guarantee("engine-faults")
def test_callers_see_nothing_but_invitations_to_try_again(tmp_path, measured, note):
    """Every turn ends with the words of the quiet server; at the end probes and queue are as at the start."""
    print(f"ENGINE_SOAK_SEED={SEED}")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    settings = {"ENGINE_PROCESS": "true", "PRELOAD": "true", "IDLE_TIMEOUT": "0", "LOG_LEVEL": "INFO"}
    settings |= {"MAX_UPLOAD_MB": str(UPLOAD_MB), "TMPDIR": str(temporary)}
    with running(tmp_path / "log", **settings) as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        times, warm, ledger, broken = FaultTimes(), Ledger(), Ledger(), Ledger()
        traffic = Traffic(RetryingCallers(server, times), {**SHARES, "cut_live": 2})
        possible = capacity(traffic, warm, CALIBRATION_S)
        assert (warm.errors, times.refused) == ([], Counter())
        began_s, done = time.monotonic(), Counter()
        over_s = began_s + SOAK_S
        faults = EngineFaults(server, temporary, times, random.Random(SEED))
        breaking = threading.Thread(target=_break, args=(faults, broken, over_s, random.Random(SEED + 1), done))
        breaking.start()
        arrive(traffic, ledger, SHARE * possible, over_s, random.Random(SEED + 2))
        breaking.join()
        traffic.close()
        took_s = time.monotonic() - began_s
        note(
            f"{ledger.done.total()} turns in {took_s / 60:.0f} min ({ledger.done.total() / took_s:.1f}/s of "
            f"{possible:.1f}/s possible), {done.total()} faults, {times.refused.total()} invitations to try again, the "
            f"latest {times.latest_s:.1f} s after a fault; slowest turn {ledger.slowest_s:.0f} s"
        )
        errors = ledger.errors + broken.errors + times.unexcused
        print(done, ledger.done, times.refused, sep="\n")
        for error in errors[:5]:
            note(f"unexpected: {error}")
        measured("unexpected", len(errors))
        server.wait_for(at_rest)
        assert server.client.get("/readyz").status_code == 200
        assert "Traceback" not in server.log()
