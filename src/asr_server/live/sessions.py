"""The live sessions of the process: opens and resumes them, keeps them for a while without a client, drains them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.audio.segmentation import load_voice_detector
from asr_server.core.audio import SAMPLE_RATE, s_to_samples
from asr_server.core.errors import InvalidInput, ShuttingDown
from asr_server.core.setting_types import Endpointing
from asr_server.live.inference import Engines, MeanTime
from asr_server.live.machine.events import EndOfTurnRules, ResultKind, TurnConfig
from asr_server.live.machine.utterance import LiveMachineConfig
from asr_server.live.session import LiveConnection, LiveSession, LiveSessionOptions, Shared
from asr_server.live.session_stats import SessionOutcome
from asr_server.live.speech_detection import EndOfTurnEstimator
from asr_server.net.access import fingerprint
from asr_server.recordings.requests import CONTEXT_IGNORED

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server.engine.feature import EndOfTurnModel
    from asr_server.schedule.admission import Admission

PARTIAL_EVERY_BYTES = 14_400  # of new speech at 16 kHz between two partials
_DRAIN_TIMEOUT_S = 20.0
_GOODBYE_TIMEOUT_S = 2.0
_LEAVE_GRACE_S = 0.25
# Voice detection that begins in the middle of speech detects it after 0.16 s (median) to 2.3 s (maximum), measured at
# 530 places of 32 recordings.
_LATEST_ONSET_SAMPLES = s_to_samples(2.5)


@dataclass(slots=True)
class _Entry:
    """An open session."""

    session: LiveSession
    owner: str
    leases: ExitStack  # keeps its engines loaded and its quota slots taken
    resumes: int = 0  # number of requests to resume it
    timer: asyncio.TimerHandle | None = None  # drops it if its client does not come back


class LiveSessions:
    """The live sessions of the server."""

    def __init__(
        self,
        settings: Settings,
        engines: Engines,
        admission: Admission,
        end_of_turn: EndOfTurnModel | None = None,
    ) -> None:
        self._settings = settings
        self._engines = engines
        estimator = EndOfTurnEstimator(end_of_turn, engines.metrics) if end_of_turn is not None else None
        self.shared = Shared(engines, settings.request_timeout, estimator)
        self._admission = admission
        self._open: dict[str, _Entry] = {}
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def ids(self) -> Set[str]:
        return self._open.keys()

    @property
    def waiting(self) -> int:
        return sum(entry.session.detached.is_set() for entry in self._open.values())

    @property
    def times(self) -> Mapping[ResultKind, MeanTime]:
        return self._engines.times

    @property
    def max_utterance_s(self) -> float:
        """The length at which an utterance without a pause is cut: the setting, or the engines' limit if lower."""
        return min(self._settings.ws_utterance_max_s, *(traits.max_audio_s for traits in self._engines.traits))

    @property
    def margin_samples(self) -> int:
        """Audio before and after the speech of an utterance: the longest margin that an engine wants."""
        return max(traits.margin_ms for traits in self._engines.traits) * SAMPLE_RATE // 1000

    def turn_config(
        self,
        *,
        manual: bool = False,
        semantic: bool | None = None,
        language: str | None = None,
        context: str = "",
        model: str = "",
    ) -> TurnConfig:
        """Return the configuration of the settings, with these changes.

        `manual`: only a flush ends an utterance. `semantic`: judge a pause by the speech before it, or by its length
        only; None uses the setting, if this server can. Raises `unsupported_value` if True and this server cannot.
        """
        s = self._settings
        if semantic and not self.judges_pauses:
            raise InvalidInput(
                "This server does not estimate the end of a turn: leave out endpointing=semantic.",
                code="unsupported_value",
                param="endpointing",
            )
        if semantic is None:
            semantic = self.judges_pauses and s.endpointing is not Endpointing.PAUSE
        return TurnConfig(
            manual,
            language,
            context,
            model=model,
            min_silence_ms=s.vad_min_silence_ms,
            end_of_turn=EndOfTurnRules() if semantic and not manual else None,
        )

    @property
    def judges_pauses(self) -> bool:
        return self.shared.end_of_turn is not None

    def prepare(self, rules: TurnConfig) -> None:
        """Start loading the engines of this configuration now. Log a warning for options without effect."""
        for engine in self._engines.used_by(rules.model):
            engine.load()
        if rules.context and not self._engines.of(rules.model).traits.uses_context:
            logger.warning(CONTEXT_IGNORED)

    async def open(self, options: LiveSessionOptions) -> LiveConnection:
        """Open a session and return a connection to it.

        Raises `ShuttingDown`, `Overloaded` and `ModelUnavailable`.
        """
        self._check_room()
        await asyncio.to_thread(load_voice_detector)
        if options.rules.end_of_turn is not None and self.shared.end_of_turn is not None:
            self.shared.end_of_turn.warm_up()
        self._check_room()  # again, since draining may have begun meanwhile and would miss this session
        identity = f"{self._settings.server_name}_{secrets.token_hex(4)}.{secrets.token_urlsafe(16)}"
        with ExitStack() as begun:
            ticket = begun.enter_context(self._admission.hold_live())
            for engine in self._engines.used_by(options.rules.model):
                begun.enter_context(engine.lease(live=True))
            self.prepare(options.rules)
            if options.place is not None:
                begun.enter_context(options.place.kept(identity, lambda: self._drop(identity)))
            session = LiveSession(identity, options, self._config(options), self.shared, ticket)
            self._open[identity] = _Entry(session, options.owner, begun.pop_all())
        return session.connect()

    async def resume(self, identity: str, received: int, owner: str = "") -> LiveConnection:
        """Return a connection to an open session. If another connection has it, that one ends.

        `received`: the last utterance whose final the client has. Raises `session_not_found`, also for a session of
        another owner, and `session_taken` if yet another connection asks for the session while this one waits.
        """
        entry = self._open.get(identity)
        if entry is not None and entry.owner == owner:
            entry.resumes = mine = entry.resumes + 1
            await self._wait_until_detached(entry.session)
            if entry.resumes != mine:
                raise InvalidInput(code="session_taken")
            if identity in self._open and not entry.session.ended:  # both may have changed meanwhile
                if entry.timer is not None:
                    entry.timer.cancel()
                return entry.session.connect(received)
        raise InvalidInput(
            "No session of this id is kept; open a new one.", code="session_not_found", param="session_id"
        )

    def owned(self, identity: str, owner: str) -> LiveSession:
        """Return an open session. Raises `session_not_found`, also for a session of another owner."""
        entry = self._open.get(identity)
        if entry is None or entry.owner != owner or entry.session.ended:
            raise InvalidInput("No session of this id is open here.", code="session_not_found", param="session_id")
        return entry.session

    def _check_room(self) -> None:
        if self._draining:
            raise ShuttingDown()
        self._admission.check(can_wait=True)

    async def _wait_until_detached(self, session: LiveSession) -> None:
        """Wait briefly for the old connection to end: a client that came back at once may have messages in transit."""
        with suppress(TimeoutError):  # the old connection broke without a sign, and the new one takes over
            async with asyncio.timeout(_LEAVE_GRACE_S):
                await session.detached.wait()

    def disconnect(self, connection: LiveConnection, *, clean: bool, resumable: bool = True) -> None:
        """Note that the client is gone. Does nothing if another connection has the session, or if it has ended."""
        session, resume_s = connection.session, self._settings.ws_resume_s
        entry = self._open.get(session.id)
        if entry is None or not session.is_current(connection) or session.detached.is_set():
            return
        session.disconnect(clean=clean)
        if resumable and resume_s > 0:
            entry.timer = asyncio.get_running_loop().call_later(resume_s, self._drop, session.id)
        else:
            self._drop(session.id)

    async def drain(self) -> None:
        """Open no new sessions. Finish the open ones, and end their connections with `ShuttingDown`."""
        self._draining = True
        await asyncio.gather(*(self._finish(entry.session) for entry in self._open.values()))
        for identity in list(self._open):
            self._drop(identity)

    async def _finish(self, session: LiveSession) -> None:
        session.stats.outcome = SessionOutcome.DRAINED
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await session.finish()
        except TimeoutError:
            logger.warning("live session not finished in time", session=session.log_name)
        session.end(ShuttingDown())
        with suppress(TimeoutError):  # uvicorn cuts off a client that does not read
            async with asyncio.timeout(_GOODBYE_TIMEOUT_S):
                await session.detached.wait()

    def _drop(self, identity: str) -> None:
        entry = self._open.pop(identity)
        if entry.timer is not None:
            entry.timer.cancel()
        session = entry.session
        session.end()
        entry.leases.close()
        key = {"key": fingerprint(entry.owner)} if entry.owner else {}
        logger.info("live session", session=session.log_name, **session.stats.close(session.machine.account), **key)

    def _config(self, options: LiveSessionOptions) -> LiveMachineConfig:
        traits, margin_samples = self._engines.traits, self.margin_samples
        return LiveMachineConfig(
            rules=options.rules,
            input_rate_hz=options.input_rate_hz,
            first_prefix_samples=_LATEST_ONSET_SAMPLES if options.reopened == "speech" else 0,
            partial_every_samples=PARTIAL_EVERY_BYTES // 2,
            max_utterance_samples=s_to_samples(self.max_utterance_s),
            max_pause_samples=s_to_samples(min(each.max_pause_s for each in traits)) + margin_samples,
            margin_samples=margin_samples,
            separate_final_engine=self._engines.separate,
        )
