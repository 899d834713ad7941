"""What the routes need: built once by `app.py`, kept in the state of the app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends
from starlette.requests import Request

from asr_server.net.access import Caller

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder
    from asr_server.core.settings import Settings
    from asr_server.engine.catalog import Catalog
    from asr_server.engine.client import Drafting
    from asr_server.engine.plan import Plan
    from asr_server.engine.protocol import Engine
    from asr_server.features.speakers.diarization.client import SpeakerClient
    from asr_server.features.speakers.enrolment import Enrolment
    from asr_server.features.speakers.voices import VoiceStore
    from asr_server.features.speech_output.sessions import SpeechSessions
    from asr_server.features.speech_output.synthesis import SpeechProcessor
    from asr_server.features.translation.translations import Translations
    from asr_server.jobs.runner import JobRunner
    from asr_server.live.options import OpeningReader
    from asr_server.live.sessions import LiveSessions
    from asr_server.net.ephemeral_keys import EphemeralKeys
    from asr_server.ops.server_metrics import Metrics
    from asr_server.recordings.pipeline import RecordingPipeline
    from asr_server.recordings.processor import RequestProcessor
    from asr_server.schedule.admission import Admission
    from asr_server.schedule.thread import EngineThread


@dataclass(slots=True)
class Services:
    """Everything that a route may call. `engines`: by the names of their models, "" for the default. `speakers`: None
    where voices are not told apart. `drafting`: None where no model drafts for the default. `ready` turns true after
    the preload, `draining` at shutdown."""

    settings: Settings
    plan: Plan
    engines: Mapping[str, Engine]
    thread: EngineThread
    admission: Admission
    catalog: Catalog
    decoder: Decoder
    speakers: SpeakerClient | None
    pipeline: RecordingPipeline
    live: LiveSessions
    live_options: tuple[OpeningReader, ...]  # of features, in the order in which they read what a client asks for
    processor: RequestProcessor
    drafting: Drafting | None
    jobs: JobRunner
    speech: SpeechProcessor
    speech_sessions: SpeechSessions
    voices: VoiceStore
    enrolment: Enrolment
    ephemeral_keys: EphemeralKeys
    translations: Translations
    metrics: Metrics
    started_s: float
    ready: bool = False
    draining: bool = False


# Coroutines, though they wait for nothing: FastAPI calls a plain function in a thread, which gets the interpreter's
# lock from a busy event loop only after several times 5 ms.
async def get_services(request: Request) -> Services:
    """The services of the app that serves this request."""
    found: Services = request.app.state.services
    return found


async def get_caller(request: Request) -> Caller:
    """Who makes this request, as the access check found."""
    found: Caller = request.state.caller
    return found


ServicesDep = Annotated[Services, Depends(get_services)]
CallerDep = Annotated[Caller, Depends(get_caller)]
