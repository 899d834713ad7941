"""The entry point: settings in, app out. Everything is built here once, and nothing heavy is imported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from loguru import logger

from asr_server import engine_core, feature_list
from asr_server import http_app as api
from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_wire import DecodeLimits
from asr_server.core import idle
from asr_server.core import settings as settings_module
from asr_server.core.errors import JobsUnavailable
from asr_server.core.idle import IdleOwner, end_when_idle
from asr_server.core.settings import Settings, superseded
from asr_server.engine import plan
from asr_server.engine.catalog import Catalog
from asr_server.engine.client import Drafting, EngineClient
from asr_server.engine.feature import END_OF_TURN, EndOfTurnModel, Plan
from asr_server.engine.protocol import Engine
from asr_server.engine_core import ElsewhereEngines, OnFailure, Watch, by_name, log_state
from asr_server.features.handover import handover
from asr_server.features.shared_jobs.database import Database
from asr_server.features.shared_jobs.database_store import DatabaseStore
from asr_server.features.shared_jobs.shared_store import LEASE_S, SharedStore
from asr_server.features.speakers.diarization.client import SpeakerClient
from asr_server.features.speakers.enrolment import Enrolment
from asr_server.features.speakers.recording_speakers import speaker_step
from asr_server.features.speakers.session_speakers import LiveSpeakerOption
from asr_server.features.speakers.speaker_names import SpeakerNames
from asr_server.features.speakers.voices import UNREADABLE_VOICES, VOICES, VoiceStore
from asr_server.features.speech_output.build import SharedThread, Speech, build_speech
from asr_server.features.speech_output.observer import SharedThreadObserver, SpeechObserver
from asr_server.features.speech_output.operations import SpeechMetrics, speech_failure
from asr_server.features.speech_output.sessions import SpeechSessions
from asr_server.features.speech_output.speech_jobs import SpeechJobs
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server.features.stereo.channels import channel_signal
from asr_server.features.translation.translations import Translations
from asr_server.jobs.disk_store import DiskStore, JobFolders
from asr_server.jobs.record import RecordFormat
from asr_server.jobs.runner import JobKind, JobRunner, RecordingJobs
from asr_server.jobs.store import JobLimits
from asr_server.live.inference import Engines
from asr_server.live.sessions import LiveSessions
from asr_server.net.access import AccessRules
from asr_server.net.credentials import EphemeralKeys
from asr_server.ops.health import not_live
from asr_server.ops.server_metrics import Metrics
from asr_server.processes import sandbox
from asr_server.recordings.pipeline import PipelineResources, PrepareStep, RecordingPipeline, RequestProcessor
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import DEFAULT
from asr_server.schedule.model import ModelState, OnState
from asr_server.schedule.thread import EngineThread
from asr_server.services import Services

# Spans that one recording may have under way, in batches: enough that the next batch never waits for the decoder.
_LOOK_AHEAD = 2
_TRIM_EVERY_S = 60.0
_KEPT_FREE_BYTES = 64 * 1024 * 1024
# Characters; a random key of this length has 96 bits even in hex digits.
_LEAST_KEY_LENGTH = 24


def create_app(
    settings: Settings | None = None,
    on_failure: OnFailure = lambda error: None,
    elsewhere: ElsewhereEngines | None = None,
) -> FastAPI:
    """The app for these settings (by default the environment's). Raises `SettingsError` and `PlanError`.

    `on_failure` is called when the engine has failed for good, on its thread and before anybody gets the error: the
    process has to end. `elsewhere`: engines in other processes.
    """
    settings = settings or settings_module.load()
    resolved = feature_list.resolve(settings) if elsewhere is None else elsewhere.plan
    rules = AccessRules.of(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        _log_plan(resolved)
        _log_safety(settings)
        metrics = Metrics()
        speech = SpeechMetrics(metrics)
        watch = Watch(SharedThreadObserver(metrics.engine, speech), _tell(metrics), on_failure)
        built = machinery(settings, resolved, watch, elsewhere, speech)
        app.state.services = services = _services(settings, resolved, built, metrics, rules.ephemeral_keys)
        await services.jobs.start()
        tasks = [
            asyncio.create_task(_make_ready(services)),
            asyncio.create_task(end_when_idle(built.idle_owners, settings.idle_timeout)),
            asyncio.create_task(_trim_heap()),
        ]
        try:
            yield
        finally:
            services.draining = True
            for task in tasks:
                task.cancel()
            await services.jobs.close()
            await built.close()

    app = api.create(lifespan, rules)
    app.state.model_id = resolved.model_id
    return app


async def drain(app: FastAPI) -> None:
    """Before the sockets are closed: report unready and wait until load balancers have noticed. Then send away who only
    watches a job, give every live session its final and an orderly end, and let every speech session finish its
    sentence."""
    services: Services = app.state.services
    services.draining = True
    if not not_live(services):  # a failed engine accepts nothing, and was unready before
        await asyncio.sleep(services.settings.drain_delay_s)
    services.jobs.drain()
    services.of(SpeechProcessor).drain()
    await asyncio.gather(services.live.drain(), services.of(SpeechSessions).drain())


def _tell(metrics: Metrics) -> OnState:
    def tell(model: str, state: ModelState, took_s: float) -> None:
        log_state(model, state, took_s)
        metrics.engine.became(state, took_s)

    return tell


@dataclass(frozen=True, slots=True)
class Machinery:
    """The parts that turn recordings into text and texts into speech, without a wire: the server's core, and all of a
    command that runs alone."""

    engines: Mapping[str, Engine]  # by the names of their models, "" for the default
    thread: EngineThread
    clients: Mapping[str, EngineClient]  # by the same names
    drafting: Drafting | None  # None where nothing is drafted
    admission: Admission
    decoder: Decoder
    speakers: SpeakerClient | None
    pipeline: RecordingPipeline
    translations: Translations
    processor: RequestProcessor
    speech: Speech

    @property
    def idle_owners(self) -> list[IdleOwner]:
        """Return those whose processes are ended when they are idle."""
        return [self.decoder, self.speech.encoder, *([self.speakers] if self.speakers is not None else [])]

    async def close(self) -> None:
        """End the connections, the decoder's child and the engine's thread."""
        await self.translations.close()
        await self.decoder.close()
        if self.speakers is not None:
            await self.speakers.close()
        await self.speech.close()
        await asyncio.to_thread(self.thread.close)


def machinery(
    settings: Settings,
    resolved: Plan,
    watch: Watch = engine_core.NOBODY,
    elsewhere: ElsewhereEngines | None = None,
    speech: SpeechObserver | None = None,
) -> Machinery:
    """Build it; each model is loaded by its first job. `elsewhere`: engines in other processes."""
    core = engine_core.build(settings, resolved, watch, elsewhere)
    thread = core.thread
    admission = Admission(
        settings.max_queue_audio_s,
        time_limit_s=settings.request_timeout,
        engine_s=lambda: thread.work.with_recordings_s,
        streams=core.streams,
    )
    decoder = Decoder(DecodeLimits(max_audio_s=settings.max_audio_s), idle_timeout_s=settings.idle_timeout)
    speakers = _speakers(settings, resolved)
    clients = {name: EngineClient(thread, model.traits, name) for name, model in by_name(resolved).items()}
    drafting = _drafting(resolved, clients)
    client = clients[DEFAULT] = EngineClient(thread, resolved.traits, drafting=drafting)
    resources = PipelineResources(
        decoder,
        client,
        admission,
        settings.request_timeout,
        _LOOK_AHEAD * resolved.max_batch,
        others={name: each for name, each in clients.items() if name != DEFAULT},
        open_signal=channel_signal,
        steps=_recording_steps(settings, decoder, speakers),
    )
    pipeline = RecordingPipeline(resources)
    translations = Translations(settings)
    processor = RequestProcessor(pipeline, settings, thread.request_clock, translations)
    return Machinery(
        core.engines,
        thread,
        clients,
        drafting,
        admission,
        decoder,
        speakers,
        pipeline,
        translations,
        processor,
        build_speech(settings, resolved, SharedThread(thread, core.speaking), speech, watch.on_failure),
    )


def _drafting(resolved: Plan, clients: Mapping[str, EngineClient]) -> Drafting | None:
    if not resolved.is_active("use_speculative"):
        return None
    make = next(feature.drafting for feature in resolved.features if feature.drafting is not None)
    return make(clients[resolved.fast_model_id])


def _speakers(settings: Settings, resolved: Plan) -> SpeakerClient | None:
    source = resolved.value("speakers")
    return SpeakerClient(source, idle_timeout_s=settings.idle_timeout) if source else None


def _recording_steps(settings: Settings, decoder: Decoder, speakers: SpeakerClient | None) -> list[PrepareStep]:
    if speakers is None:
        return []
    return [speaker_step(speakers, SpeakerNames(speakers, decoder, VoiceStore(settings.state_dir)))]


def _services(
    settings: Settings, resolved: Plan, built: Machinery, metrics: Metrics, ephemeral_keys: EphemeralKeys
) -> Services:
    clients = dict(built.clients)
    accurate = clients.pop(DEFAULT)
    fast = clients[resolved.fast_model_id] if resolved.is_active("dual_model") else accurate
    engines = Engines(fast, accurate, metrics.live, clients)
    voices = VoiceStore(settings.state_dir)
    return Services(
        settings=settings,
        plan=resolved,
        engines=built.engines,
        thread=built.thread,
        admission=built.admission,
        catalog=Catalog.of(resolved, settings.aliases),
        decoder=built.decoder,
        pipeline=built.pipeline,
        live=LiveSessions(settings, engines, built.admission, _end_of_turn(resolved)),
        live_options=(handover.read_opening, LiveSpeakerOption(built.speakers, voices).read_opening),
        processor=built.processor,
        drafting=built.drafting,
        jobs=_jobs(settings, (RecordingJobs(built.processor), SpeechJobs(built.speech.processor))),
        ephemeral_keys=ephemeral_keys,
        metrics=metrics,
        started_s=time.monotonic(),
        features={type(service): service for service in _feature_services(settings, resolved, built, voices)},
        failures=(lambda: speech_failure(built.speech.processor),),
    )


def _feature_services(settings: Settings, resolved: Plan, built: Machinery, voices: VoiceStore) -> tuple[object, ...]:
    enrolment = Enrolment(
        built.speakers or resolved.reason("speakers"), built.decoder, voices, time_limit_s=settings.request_timeout
    )
    return built.translations, voices, enrolment, built.speech.processor, built.speech.sessions


def _end_of_turn(resolved: Plan) -> EndOfTurnModel | None:
    if not resolved.is_active(END_OF_TURN):
        return None
    return next(feature.end_of_turn for feature in resolved.features if feature.end_of_turn is not None)()


def _job_limits(settings: Settings) -> JobLimits:
    return JobLimits(
        settings.job_ttl,
        settings.job_timeout,
        settings.max_jobs,
        settings.key_max_jobs,
        int(settings.key_max_jobs_mb * 2**20),
        several_keys=len(settings.keys) > 1,
        max_bytes=int(settings.jobs_database_mb * 2**20),
    )


def _jobs(settings: Settings, kinds: tuple[JobKind, ...]) -> JobRunner:
    records = RecordFormat(one for kind in kinds for one in kind.request_types)
    limits, url = _job_limits(settings), settings.jobs_database_url.get_secret_value()
    if not url:
        return JobRunner(kinds, limits, DiskStore(limits, lambda: _job_folders(settings, records)))
    rows = DatabaseStore(Database(url), LEASE_S, records)
    return JobRunner(kinds, limits, SharedStore(rows, limits, settings.state_dir))


def _job_folders(settings: Settings, records: RecordFormat) -> JobFolders:
    """Raises `JobsUnavailable`: everything but jobs works without."""
    try:
        return JobFolders(settings.state_dir.expanduser(), records, (VOICES, UNREADABLE_VOICES))
    except RuntimeError:  # pathlib's
        raise JobsUnavailable("STATE_DIR cannot be used (this user has no home directory).") from None


async def _make_ready(services: Services) -> None:
    if services.settings.preload:
        try:
            await asyncio.wrap_future(services.thread.load())
            speech = services.of(SpeechProcessor)
            if not speech.silent_because:
                await speech.warm_up()
        except Exception as error:  # the reason stays visible in /health and /readyz; the next request tries again
            logger.opt(exception=error).error("preload failed")
    services.ready = True


async def _trim_heap() -> None:
    """Under load the C library's heaps hold ever more that nobody uses: 40 MiB in 20 minutes. Some of it is wanted
    again with the next batch, so it stays."""
    while True:
        await asyncio.sleep(_TRIM_EVERY_S)
        if await asyncio.to_thread(idle.free_heap_bytes) > _KEPT_FREE_BYTES:
            await asyncio.to_thread(idle.trim_heap)


def _log_safety(settings: Settings) -> None:
    """Log what an operator should know before others find out."""
    logger.info("access", keys=len(settings.keys), anonymous=not settings.keys, host=settings.host)
    if any(len(key) < _LEAST_KEY_LENGTH for key in settings.keys):
        logger.warning("a key is short enough to be guessed", least=_LEAST_KEY_LENGTH)
    if unused := superseded():
        advice = "; ".join(f"{name}: {instead}" for name, instead in unused.items())
        logger.warning("settings without effect", settings=advice)
    if not sandbox.filters_calls():
        logger.warning("decoders are confined by limits alone: no system call filter on this kernel or machine")


def _log_plan(resolved: Plan) -> None:
    logger.info("engine", engine=resolved.engine, model=resolved.model_id)
    if plan.FAKE in (resolved.engine, resolved.value("speech"), resolved.value("speech_clone_model")):
        logger.warning("the answers are scripted: this engine is for tests only")
    for option in resolved.options:
        if option.active:
            logger.info("option", name=option.name, value=option.value, reason=option.reason)
