"""Settings of jobs. `core/settings.py` reads them with all others."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, field_validator


class JobSettings(BaseModel):
    """The place of jobs, and their limits."""

    jobs_database_url: SecretStr = Field(
        SecretStr(""),
        description="PostgreSQL database for jobs (`postgresql://user:password@host/name`) that several servers share; "
        "empty: jobs are this server's alone, in `STATE_DIR`.",
    )
    jobs_database_mb: float = Field(
        20_480.0, gt=0, description="MiB that all jobs may take in the database; a new job that needs more gets 503."
    )
    job_ttl: float = Field(86_400.0, gt=0, description="Seconds for which a finished job and its result are kept.")
    job_timeout: float = Field(14_400.0, gt=0, le=604_800, description="Seconds after which a running job fails.")
    max_jobs: int = Field(1_000, ge=1, description="Limit of waiting and running jobs; a new job gets 429.")
    key_max_jobs: int = Field(
        0,
        ge=0,
        description="Waiting and running jobs per key; 0: of `MAX_JOBS` as many as they leave free, with one key all.",
    )
    key_max_jobs_mb: float = Field(
        0.0,
        ge=0,
        description="MiB of recordings and results that the jobs of a key may keep; 0: as many as they leave free on "
        "the disk or of `JOBS_DATABASE_MB`, with one key no limit.",
    )

    @field_validator("jobs_database_url")
    @classmethod
    def _is_a_database(cls, value: SecretStr) -> SecretStr:
        if url := value.get_secret_value():
            try:
                parts = urlsplit(url)
                known = parts.scheme in ("postgresql", "postgres") and parts.port != 0
            except ValueError:
                known = False
            if not known:
                raise ValueError("it must be postgresql://user:password@host:port/name")
        return value
