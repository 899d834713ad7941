"""Jobs that several servers share in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerFeature, ServerHook

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server.jobs.record import RecordFormat
    from asr_server.jobs.store import JobLimits, JobStore


def _store(settings: Settings, limits: JobLimits, records: RecordFormat) -> JobStore | None:
    url = settings.jobs_database_url.get_secret_value()
    if not url:
        return None
    from asr_server.features.shared_jobs.database import Database
    from asr_server.features.shared_jobs.database_store import DatabaseStore
    from asr_server.features.shared_jobs.shared_store import LEASE_S, SharedStore

    return SharedStore(DatabaseStore(Database(url), LEASE_S, records), limits, settings.state_dir)


FEATURE = Feature("shared_jobs", extends=(ServerHook(lambda: ServerFeature(job_store=_store)),))
