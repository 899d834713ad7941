"""The services that routes call: built once by `app.py`, kept in the state of the app."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import Depends
from starlette.datastructures import FormData
from starlette.requests import Request

from asr_server.core.errors import InvalidInput
from asr_server.net.access import Caller

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from asr_server.audio.decode import Decoder
    from asr_server.core.idle import IdleOwner
    from asr_server.core.settings import Settings
    from asr_server.engine.catalog import Catalog
    from asr_server.engine.client import EngineClient, ModelDrafts
    from asr_server.engine.feature import Plan
    from asr_server.engine.protocol import EngineInfo
    from asr_server.jobs.follow_ups import FollowUpSender
    from asr_server.jobs.runner import JobKind, JobRunner
    from asr_server.live.outbox import Decode, OpeningReader
    from asr_server.live.sessions import LiveSessions
    from asr_server.net.access import EphemeralKeys
    from asr_server.net.request_log import RequestMetrics
    from asr_server.recordings.pipeline import (
        PrepareStep,
        RecordingPipeline,
        RequestProcessor,
        SplitSignal,
        TranscriptTranslator,
        WriteDocument,
    )
    from asr_server.recordings.requests import RecordingRequest
    from asr_server.recordings.span import ContextCheck
    from asr_server.schedule.admission import Admission
    from asr_server.schedule.thread import Scheduler


T = TypeVar("T")


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class FeatureParts:
    """The parts of one feature in a running server."""

    services: Sequence[object] = ()  # the objects that its routes call; `Services.of` finds them by class
    steps: Mapping[str, PrepareStep] = field(
        default_factory=dict
    )  # of recordings, by the attribute of a request that asks for the step
    split_signal: SplitSignal | None = None  # opens a recording with its channels kept apart
    context_check: ContextCheck | None = None  # checks answers to audio with a context
    translator: TranscriptTranslator | None = None
    write_document: WriteDocument | None = None
    # By the name of a form field: completes a form that has the field. Raises `AsrError`.
    form_fields: Mapping[str, Callable[[FormData, Request], Awaitable[FormData]]] = field(default_factory=dict)
    # Raises `InvalidInput` if the feature cannot rewrite the text of a request. Called before anything is decoded.
    check_rewriting: Callable[[RecordingRequest], None] | None = None
    read_opening: OpeningReader | None = None  # reads the feature's options of a live session
    opus: Callable[[int], AbstractAsyncContextManager[Decode]] | None = None  # opens a stream of live audio at a rate
    jobs: Sequence[JobKind] = ()
    follow_ups: FollowUpSender | None = None  # of jobs
    idle_owners: Sequence[IdleOwner] = ()  # their processes are ended when they are idle
    failure: Callable[[], str] = lambda: ""  # why the process should be restarted, "" if it should not
    warm_up: Callable[[], Awaitable[None]] = _nothing  # after the preload of the models
    drain: Callable[[], Awaitable[None]] = _nothing  # ends its sessions in order, before the sockets are closed
    close: Callable[[], Awaitable[None]] = _nothing


@dataclass
class Machinery:
    """The parts that turn recordings into text and texts into speech, without any protocol: the core of a server."""

    infos: Callable[[], Mapping[str, EngineInfo]]  # of the engines, by the names of their models, "" for the default
    thread: Scheduler
    clients: Mapping[str, EngineClient]  # by the same names
    drafting: ModelDrafts | None  # None if no model drafts for the default
    admission: Admission
    decoder: Decoder
    features: Sequence[FeatureParts]
    pipeline: RecordingPipeline
    processor: RequestProcessor

    @property
    def idle_owners(self) -> list[IdleOwner]:
        return [self.decoder, *(owner for parts in self.features for owner in parts.idle_owners)]

    async def close(self) -> None:
        """End the parts of the features, the decoder's child and the engine's thread."""
        for parts in self.features:
            await parts.close()
        await self.decoder.close()
        await asyncio.to_thread(self.thread.close)


@dataclass(kw_only=True)
class Services(Machinery):
    """Everything that a route may call."""

    settings: Settings
    plan: Plan
    catalog: Catalog
    live: LiveSessions
    jobs: JobRunner
    ephemeral_keys: EphemeralKeys
    registry: CollectorRegistry
    request_metrics: RequestMetrics
    started_s: float
    ready: bool = False  # turns true after the preload
    draining: bool = False  # turns true at shutdown

    def check(self, request: RecordingRequest) -> None:
        """Raise `unsupported_value` if the request uses a text option that this server cannot serve. Called before
        anything is decoded."""
        for option in request.chosen_text_options:
            if not self.plan.is_active(option):
                reason = self.plan.reason(option) or "it was built without that"
                raise InvalidInput(
                    f"This server does not serve '{option}' ({reason}).", code="unsupported_value", param=option
                )
        for parts in self.features:
            if request.chosen_text_options and parts.check_rewriting is not None:
                parts.check_rewriting(request)

    def of(self, kind: type[T]) -> T:
        return next(one for parts in self.features for one in parts.services if isinstance(one, kind))


# Coroutines, though they await nothing: FastAPI calls a plain function in a thread, and while the event loop is busy, a
# thread gets the interpreter's lock only after several times 5 ms.
async def get_services(request: Request) -> Services:
    """Return the services of the app that serves this request."""
    found: Services = request.app.state.services
    return found


async def get_caller(request: Request) -> Caller:
    """Return the caller of this request, as the access check found it."""
    found: Caller = request.state.caller
    return found


ServicesDep = Annotated[Services, Depends(get_services)]
CallerDep = Annotated[Caller, Depends(get_caller)]
