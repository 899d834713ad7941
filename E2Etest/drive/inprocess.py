"""A server in a thread of the test process: the app as `asr-server serve` builds it, with the fake engine."""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from loguru import logger

from asr_server import app as composition
from asr_server.cli import serve
from asr_server.core.settings import Settings
from asr_server.engine import core as engine_core
from asr_server.engine.aligning import AligningEngine
from asr_server.engine.core import pass_tokens
from asr_server.features.speakers import route as speakers_route
from asr_server.features.speakers.diarization.conftest import ScriptedLiveSpeakers, ToneSpeakers
from asr_server.features.speech_output import build as speech_build
from asr_server.features.speech_output.build import engines_named
from asr_server.features.speech_output.engines.protocol import SpeechEngine
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server_fake.engine import FakeAligner, FakeEngine
from asr_server_fake.script import FakeScript
from asr_server_fake.speech import FakeSpeechEngine
from E2Etest.contract.word_spotter import text_of
from E2Etest.drive.process import Server

_END_S = 60.0
_LOG = {
    "format": "{time:HH:mm:ss.SSS} {level: <7} {name} {message}{extra[tail]}",
    "level": "TRACE",
    "backtrace": False,
    "diagnose": False,
}


class InProcessServer(Server):
    """Serves until `stop`. Use `running()`. `settings` are named as in the environment, which is not read.

    The words of the bundled recording are recognised where they are in the audio; `script` adds delays and faults.
    `speakers` takes the place of what tells speakers apart, and the speech engine `fake` that of the one that the
    settings name if `scripted_speech` is set. `longest_run_s`: a shorter limit than four hours for any request.
    """

    def __init__(
        self,
        folder: Path,
        *,
        script: FakeScript | None = None,
        speakers: ScriptedLiveSpeakers | ToneSpeakers | None = None,
        scripted_speech: bool = False,
        longest_run_s: float | None = None,
        **settings: str,
    ) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        super().__init__(port, key=settings.get("API_KEYS", "").partition(",")[0])
        self._script = script or FakeScript()
        self._parts: list[FakeEngine | FakeAligner | FakeSpeechEngine] = []
        self._scripted_speech = scripted_speech
        self.speech_engine: SpeechEngine | None = None
        self.log_path = folder / "log"
        self._sink = logger.add(self.log_path, filter=self._is_ours, **_LOG)
        self.state = Path(settings.get("STATE_DIR", folder / "state"))
        given = {
            "MODEL_ID": "demo",
            "USE_GRANIAN": os.environ.get("USE_GRANIAN", "false"),
            "SPEECH": "espeak",  # most tests ask how a text is spoken, whatever the voice; this one takes least time
            "ENDPOINTING": "pause",  # most tests say how long a pause is, whatever was said before it
            **settings,
            "STATE_DIR": str(self.state),
            "PORT": str(port),
        }
        with mock.patch.dict(os.environ, given, clear=True):
            read = Settings(_env_file=None)
        build_speakers = (lambda *_, **__: speakers) if speakers else speakers_route.SpeakerClient
        with (
            mock.patch.object(Settings, "longest_run_s", longest_run_s or read.longest_run_s),
            mock.patch.object(engine_core, "build_aligning", self._build_engine),
            mock.patch.object(speakers_route, "SpeakerClient", build_speakers),
            mock.patch.object(speech_build, "engines_named", self._build_speech_engine),
            mock.patch.dict(os.environ, {name: given[name] for name in ("FAKE_ENGINE_SCRIPT",) if name in given}),
        ):
            self._app = composition.create_app(read)
            drain = functools.partial(composition.drain, self._app)
            self._server = serve.http_server(self._app, drain, {}, granian=read.use_granian)
            self._thread = threading.Thread(target=self._run, args=(listener,), name="server")
            self._thread.start()
            while not self._server.started:
                assert self._thread.is_alive(), self.log()
                self._thread.join(0.005)

    def log(self) -> str:
        """Everything that was logged for it, and what no server's thread has logged meanwhile."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def begin_to_stop(self) -> None:
        """Drain, then end, as with SIGTERM."""
        self._server.should_exit = True

    def stop(self) -> None:
        """Drain and end. Does nothing the second time."""
        if not self._thread.is_alive():
            return
        self.close()
        self.begin_to_stop()
        self._thread.join(_END_S)
        assert not self._thread.is_alive()
        logger.remove(self._sink)
        assert "canary" not in self.log(), "a marker that callers send is in the log"

    def _run(self, listener: socket.socket) -> None:
        # Its tasks and their threads inherit the context, so each server has a log of its own.
        with logger.contextualize(port=self.port):
            self._server.run([listener])

    def _is_ours(self, record) -> bool:
        if record["name"] == "websockets.client":  # a test's own client
            return False
        return record["extra"].get("port", self.port) == self.port

    def replace_script(self, script: FakeScript) -> None:
        for part in self._parts:
            part.scripts.replace(script)

    @property
    def speech(self) -> SpeechProcessor:
        return self._app.state.services.of(SpeechProcessor)

    @property
    def speech_pid(self) -> int | None:
        """The process that speaks, None while there is none."""
        process = self.speech_engine.process
        return process.pid if process is not None else None

    def _build_speech_engine(self, name, *args):
        if self._scripted_speech:
            self.speech_engine = fake = FakeSpeechEngine(self._script)
            self._parts.append(fake)
            return (fake,)
        engines = engines_named(name, *args)
        self.speech_engine = engines[0]
        return engines

    def _build_engine(self, plan, *, idle_timeout_s, on_progress, request_clock, beside):
        engine, aligner = FakeEngine(plan, on_progress, self._script, text_of), FakeAligner(plan, self._script)
        self._parts += [engine, aligner]
        return AligningEngine(
            engine,
            aligner,
            pass_tokens=pass_tokens(plan.device),
            idle_timeout_s=idle_timeout_s,
            request_clock=request_clock,
        )


@contextmanager
def running(folder: Path, **options: object) -> Iterator[InProcessServer]:
    """A live server; stopped at the end."""
    server = InProcessServer(folder, **options)
    try:
        yield server
    finally:
        server.stop()


@functools.cache  # again, it would take their files from servers that run
def configure_logging() -> None:
    """Log as a server process does, but to the files of the servers alone."""
    serve.configure_logging(Settings(_env_file=None))
    logger.remove()
