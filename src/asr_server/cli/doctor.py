"""`asr-server doctor`: what this machine can run, what it cannot and why; tests it with the bundled model."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from asr_server import __version__, demo
from asr_server.cli import arguments
from asr_server.cli.failure import CommandError, Exit, Failure
from asr_server.cli.listening import address_error, certificate_error
from asr_server.client.connection import FileError
from asr_server.core.errors import ModelUnavailable
from asr_server.recordings.requests import ResponseFormat, Result, TranscriptionRequest

if TYPE_CHECKING:
    from asr_server.core.settings import Settings

EXAMPLES = (
    "asr-server doctor                 what is wrong, and what would run",
    "asr-server doctor --all           everything",
    "asr-server doctor --quick --json",
    "MODEL_ID=Qwen/Qwen3-ASR-0.6B DEVICE=cuda asr-server doctor",
)
# The largest released checkpoint, as downloaded.
_LARGEST_MODEL_BYTES = 5e9
_GIB = 1024**3
# The least share of right words. In the two bundled recordings 31 of 32 are right.
_LEAST_HEARD = 0.7
# The instruction sets that decide the engine's speed, newest first, as the kernel names them.
_CPU_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
# Each library with the command that installs it, or "" if it belongs to the server's own packages.
_LIBRARIES = dict.fromkeys(("openvino", "tokenizers"), "only Qwen3-ASR needs it: pip install '.[cpu]'")
_LIBRARIES |= {"torch": "GPUs need it: pip install '.[gpu]'", "onnxruntime": "", "av": ""}


class Mark(StrEnum):
    """The severity of a finding. Only `FAIL` makes the command fail."""

    OK = "ok"
    NOTE = "note"
    OFF = "off"
    FAIL = "FAIL"


_COLOURS = {Mark.OK: "green", Mark.NOTE: "yellow", Mark.OFF: "dim", Mark.FAIL: "bold red"}
# The subjects that the short report shows if nothing has failed.
_ESSENTIAL = ("gpu", "engine", "device", "dtype", "model", "words", "speed", "spoken words")


class Finding(NamedTuple):
    """A line of the report."""

    mark: Mark
    subject: str
    text: str


Findings = Iterator[Finding]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES, "exit codes: 0 the server would run; 1 something is wrong")
    parser.add_argument("--quick", action="store_true", help="skip the self-test, which loads the bundled model")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--all", action="store_true", help="list every finding, not only problems and essentials")
    form.add_argument("--json", action="store_true", help="print every finding as JSON")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    report = _report(quick=parsed.quick)
    findings = [finding for section in report.values() for finding in section]
    failed = any(finding.mark is Mark.FAIL for finding in findings)
    if parsed.json:
        sections = {title.lower(): [finding._asdict() for finding in found] for title, found in report.items()}
        print(json.dumps({"ok": not failed, **sections}))
    elif parsed.all:
        for title, section in report.items():
            _show(title, section)
    else:
        _show_essentials(findings, failed)
    return Exit.FAILED if failed else Exit.DONE


def _report(*, quick: bool) -> dict[str, list[Finding]]:
    """Return all findings, by section."""
    from asr_server.core import settings
    from asr_server.features import remote_engine

    report = {"Machine": list(_machine()), "Software": list(_software())}
    try:
        chosen = settings.load()
    except settings.SettingsError as error:
        return report | {"Settings": [Finding(Mark.FAIL, "settings", line) for line in str(error).splitlines()]}
    report |= {"Settings": list(_plan(chosen)), "Environment": list(_environment(chosen))}
    if quick or remote_engine.is_remote(chosen):
        return report
    return report | {"Self-test": list(_self_test(chosen))}


def _show_essentials(findings: Sequence[Finding], failed: bool) -> None:
    """Print the problems, then what the server would run with, and count the other findings."""
    problems = sorted((f for f in findings if f.mark in (Mark.FAIL, Mark.NOTE)), key=lambda f: f.mark is Mark.NOTE)
    essential = [f for f in findings if f.subject in _ESSENTIAL and f not in problems and not failed]
    if problems:
        _show("Problems" if failed else "To know", problems)
    if not failed:
        _show("The server would run", essential)
    print(f"\n{len(findings) - len(problems) - len(essential)} more findings: asr-server doctor --all")


def _show(title: str, findings: Sequence[Finding]) -> None:
    """Print a section. Colours only on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(title, "bold"))
    for mark, subject, text in findings:
        console.print(Text(f"  {mark.value:5}", _COLOURS[mark]).append(f"{subject:21} {text}", "not bold default"))


def _machine() -> Findings:
    from asr_server.engine import capabilities, memory

    probed = capabilities.probe()
    name = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(errors="replace"))
    flags = ", ".join(flag for flag in _CPU_FLAGS if flag in probed.cpu_flags) or "no AVX2, which will be slow"
    cpu = name[1] if name else platform.machine()
    yield Finding(Mark.OK, "cpu", f"{len(os.sched_getaffinity(0))} cores, {cpu}; {flags}")
    total_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB
    yield Finding(Mark.OK, "memory", f"{total_gib:.1f} GiB, {memory.free_bytes() / _GIB:.1f} free")
    if probed.gpu:
        driver = f"{probed.gpus.driver} {'.'.join(map(str, probed.gpus.driver_version))}".rstrip()
        yield Finding(Mark.OK, "gpu", f"{', '.join(probed.gpus.cards) or 'unnamed'}; driver: {driver}")
    else:
        yield Finding(Mark.OFF, "gpu", "no NVIDIA or AMD driver found")


def _software() -> Findings:
    from asr_server.audio.decode import ffmpeg_version
    from asr_server.engine import capabilities

    yield Finding(Mark.OK, "asr-server", f"{__version__}, Python {platform.python_version()}")
    for name, purpose in _LIBRARIES.items():
        missing = (Mark.OFF, f"not installed; {purpose}") if purpose else (Mark.FAIL, "missing: pip install .")
        version = capabilities.version(name)
        yield Finding(Mark.OK, name, version) if version else Finding(missing[0], name, missing[1])
    probed = capabilities.probe()
    if probed.gpu and not probed.torch_cuda:
        found = f"a {probed.gpus.build} build, not for" if probed.torch else "not installed, so nothing uses"
        yield Finding(Mark.NOTE, "torch", f"{found} this GPU: pip uninstall torch, then pip install '.[gpu]'")
    try:
        yield Finding(Mark.OK, "ffmpeg", f"{ffmpeg_version()}, bundled with av")
    except ImportError as error:
        yield Finding(Mark.FAIL, "ffmpeg", f"its libraries cannot be loaded: {error}")


def _plan(settings: Settings) -> Findings:
    from asr_server import feature_list
    from asr_server.engine import plan

    try:
        resolved = feature_list.resolve(settings)
    except plan.PlanError as error:
        for line in str(error).splitlines():
            yield Finding(Mark.FAIL, "plan", line)
        return
    for option in resolved.options:
        text = f"{option.value}: {option.reason}" if option.active else option.reason
        yield Finding(Mark.OK if option.active else Mark.OFF, option.name, text)


def _environment(settings: Settings) -> Findings:
    from asr_server.cli import models
    from asr_server.engine import plan
    from asr_server.engine.qwen_asr import model_cache

    try:
        there, text = models.state(settings)
        yield Finding(Mark.OK if there else Mark.NOTE, "model", text)
    except ModelUnavailable as error:
        yield Finding(Mark.FAIL, "model", error.message)
    except plan.PlanError:
        yield Finding(Mark.OFF, "model", "not examined: the settings above cannot work")
    reason, address = address_error(settings.host, settings.port), f"{settings.host}:{settings.port}"
    problem = f"{address} cannot be used ({reason}); choose another with PORT"
    yield Finding(Mark.NOTE, "port", problem) if reason else Finding(Mark.OK, "port", f"{address} is free")
    if settings.ssl_certfile:
        reason = certificate_error(settings)
        yield Finding(Mark.FAIL if reason else Mark.OK, "TLS", reason or "certificate and key belong together")
    yield _disk("disk for uploads", Path(tempfile.gettempdir()), settings.max_upload_bytes)
    yield _disk("disk for models", model_cache.cache_directory(), _LARGEST_MODEL_BYTES)


def _disk(subject: str, directory: Path, needed_bytes: float) -> Finding:
    free_bytes = shutil.disk_usage(next(place for place in (directory, *directory.parents) if place.exists())).free
    mark = Mark.OK if free_bytes >= needed_bytes else Mark.NOTE
    advice = "" if mark is Mark.OK else f"; {needed_bytes / _GIB:.1f} GiB are recommended"
    return Finding(mark, subject, f"{free_bytes / _GIB:.1f} GiB free in {directory}{advice}")


def _self_test(settings: Settings) -> Findings:
    """Transcribe a recording twice with the bundled model of the configured engine: the first time loads the model.
    Then speak the recording's words, and transcribe the speech."""
    from asr_server import feature_list
    from asr_server.engine.plan import PlanError
    from asr_server.features.moonshine import package as moonshine

    try:
        english = feature_list.resolve(settings).model_id == moonshine.MODEL_ID
        bundled, sample = (moonshine.MODEL_ID, demo.speech()) if english else ("demo", demo.sample())
        print("  loading the bundled model ...", file=sys.stderr, flush=True)
        yield from asyncio.run(_transcribe(bundled, sample))
    except PlanError:
        yield Finding(Mark.FAIL, "self-test", "not done: the settings above cannot work")
    except CommandError as error:
        yield Finding(Mark.FAIL, "self-test", error.message if isinstance(error, Failure) else str(error))


async def _transcribe(bundled: str, sample: demo.Sample) -> list[Finding]:
    from asr_server.cli.backends import backend, local_settings, worker

    async def transcribed(recording: bytes) -> Result:
        request = TranscriptionRequest(response_format=ResponseFormat.TEXT)
        return await opened.answer_to(io.BytesIO(recording), request)

    start_s, recording = time.monotonic(), sample.recording.read_bytes()
    async with backend(worker(local_settings(bundled))) as opened:
        await transcribed(recording)
        loaded_s = time.monotonic()
        result = await transcribed(recording)
        elapsed_s, duration_s = time.monotonic() - loaded_s, result.duration_s or 0.0
        wanted = demo.words(sample.text)
        right = demo.words(result.content.decode()) == wanted
        words = (Mark.OK, "transcribed correctly by the bundled model") if right else (Mark.FAIL, "wrong")
        speed = f"{duration_s:.1f} s of audio in {elapsed_s:.2f} s, {duration_s / elapsed_s:.1f}x real time"
        found = [
            Finding(words[0], "words", words[1]),
            Finding(Mark.OK, "speed", f"{speed}; {loaded_s - start_s:.1f} s with loading"),
        ]
        try:
            speech = b"".join([part async for part in opened.stream(sample.text, format="wav")])
        except FileError as error:
            mark = Mark.OFF if error.code == "speech_unavailable" else Mark.FAIL
            return [*found, Finding(mark, "spoken words", error.message)]
        result = await transcribed(speech)
    count = (Counter(wanted) & Counter(demo.words(result.content.decode()))).total()
    mark = Mark.OK if count >= _LEAST_HEARD * len(wanted) else Mark.NOTE
    text = f"{count} of {len(wanted)} words of {result.duration_s or 0.0:.1f} s of speech were recognized"
    return [*found, Finding(mark, "spoken words", text)]
