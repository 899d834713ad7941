"""Several processes that serve one port, with one engine process behind them, as one server."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from asr_server.engine.feature import Asked, Feature, Plan
from asr_server.engine.protocol import Option
from asr_server.features.engine_process import is_shared
from asr_server.server_feature import ServerFeature, ServerHook

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server.engine_core import BuildCore
    from asr_server.features.front_ends.front_end import Here
    from asr_server.jobs.record import RecordFormat
    from asr_server.jobs.store import JobLimits, JobStore
    from asr_server.schedule.siblings import Siblings

NAME = "workers"
# This process among those of its server, set by its program before the app is built; None where it is the only one,
# which imports nothing of the others.
here: Here | None = None
_MOST_BY_ITSELF = 8


def _obstacle(asked: Asked) -> str:
    """Return why several processes cannot serve the port, "" if they can."""
    settings = asked.settings
    if settings.gateway_mode:
        return "GATEWAY_MODE supervises one process"
    if settings.use_granian:
        return "USE_GRANIAN cannot serve the socket by which the processes reach each other"
    if settings.engine_process is False:
        return "ENGINE_PROCESS=false keeps the engine in the process that serves"
    if is_shared(asked):
        return "Qwen3-TTS runs on the thread of the recogniser, and its rows do not travel to another process yet"
    return ""


def _options(asked: Asked) -> Iterator[Option]:
    chosen, obstacle = asked.settings.workers, _obstacle(asked)
    if chosen != "auto":
        yield Option(NAME, chosen > 1, str(chosen) if chosen > 1 else "", "as set" if chosen > 1 else "one process")
        return
    cores = asked.capabilities.cpu.threads
    count = min(_MOST_BY_ITSELF, (cores - 2) // 2)
    if obstacle or count < 2:
        yield Option(NAME, False, "", f"auto: {obstacle or f'with {cores} cores one process serves as many callers'}")
    else:
        yield Option(NAME, True, str(count), f"auto: one for each two of {cores} cores beyond the first two")


def _conflicts(asked: Asked) -> Iterator[str]:
    chosen, obstacle = asked.settings.workers, _obstacle(asked)
    if chosen not in ("auto", 1) and obstacle:
        yield f"WORKERS={chosen}: {obstacle}."


def _engine(resolved: Plan) -> BuildCore | None:
    if here is None:
        return None
    from asr_server.features.front_ends import front_end

    return functools.partial(front_end.build, here.ledger)


def _siblings() -> Siblings | None:
    return here.ledger if here is not None else None


def _jobs(settings: Settings, limits: JobLimits, records: RecordFormat) -> JobStore | None:
    """Return the store of a process that passes on what is asked of jobs."""
    if here is None or here.has_jobs or settings.jobs_database_url.get_secret_value():
        return None
    return here.no_jobs(limits, records)


FEATURE = Feature(
    "front_ends",
    options=_options,
    conflicts=_conflicts,
    extends=(ServerHook(lambda: ServerFeature(engine=_engine, siblings=_siblings, job_store=_jobs)),),
)
