"""`asr-server doctor`: what this machine can run, what it cannot and why; tests it with the bundled model."""

from __future__ import annotations

import argparse
import asyncio
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
from contextlib import aclosing
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from asr_server import __version__
from asr_server.cli.backend import BackendResult, RecordingDuration
from asr_server.cli.failure import Exit, Failure, NoServer, UsageError
from asr_server.cli.listening import address_error, certificate_error
from asr_server.core.errors import AsrError
from asr_server.recordings.requests import OutputOptions, ResponseFormat, TranscriptionRequest

if TYPE_CHECKING:
    from asr_server.cli.backends import LocalBackend
    from asr_server.core.settings import Settings
    from asr_server.demo import Sample

EXAMPLES = """\
examples:
  asr-server doctor                 what is wrong, and what would run
  asr-server doctor --all           everything
  asr-server doctor --quick --json
  MODEL_ID=Qwen/Qwen3-ASR-0.6B DEVICE=cuda asr-server doctor

exit codes: 0 the server would run; 1 something is wrong
"""
# The largest released checkpoint, as downloaded.
_LARGEST_MODEL_BYTES = 5e9
_GIB = 1024**3
# The least share of right words. Of those of the two bundled recordings 31 of 32 are right.
_LEAST_HEARD = 0.7
_FOR_QWEN = {"tokenizers", "openvino"}
# The instruction sets that decide the engine's speed, newest first, by the kernel's names.
_CPU_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
_LIBRARIES = ("openvino", "tokenizers", "torch", "onnxruntime", "av")


class Mark(StrEnum):
    """The severity of a finding. Only `FAIL` makes the command fail."""

    OK = "ok"
    NOTE = "note"
    OFF = "off"
    FAIL = "FAIL"


_COLOURS = {Mark.OK: "green", Mark.NOTE: "yellow", Mark.OFF: "dim", Mark.FAIL: "bold red"}
# The last line of a report without problems.
_ESSENTIAL = ("gpu", "engine", "device", "dtype", "model", "words", "speed", "spoken words")


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report."""

    mark: Mark
    subject: str
    text: str


Findings = Iterator[Finding]
Report = dict[str, list[Finding]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--quick", action="store_true", help="skip the self-test, which loads the bundled model")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--all", action="store_true", help="list every finding, not only problems and essentials")
    form.add_argument("--json", action="store_true", help="print every finding as JSON")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    report = _report(quick=parsed.quick)
    failed = any(finding.mark is Mark.FAIL for findings in report.values() for finding in findings)
    if parsed.json:
        print(json.dumps({"ok": not failed, **{t.lower(): [asdict(f) for f in found] for t, found in report.items()}}))
    elif parsed.all:
        for title, findings in report.items():
            _show(title, findings)
    else:
        _show_essentials([finding for findings in report.values() for finding in findings], failed)
    return Exit.FAILED if failed else Exit.DONE


def _report(*, quick: bool) -> Report:
    """Return all findings, by section."""
    from asr_server.core import settings
    from asr_server.features.remote_engine import options as remote_options

    report = {"Machine": list(_machine()), "Software": list(_software())}
    try:
        chosen = settings.load()
    except settings.SettingsError as error:
        return report | {"Settings": [Finding(Mark.FAIL, "settings", line) for line in str(error).splitlines()]}
    report |= {"Settings": list(_plan(chosen)), "Environment": list(_environment(chosen))}
    if quick or remote_options.is_remote(chosen):
        return report
    return report | {"Self-test": list(_self_test(chosen))}


def _show_essentials(findings: Sequence[Finding], failed: bool) -> None:
    """The problems first, then what the server would run with; the rest is counted."""
    problems = sorted((f for f in findings if f.mark in (Mark.FAIL, Mark.NOTE)), key=lambda f: f.mark is Mark.NOTE)
    essential = [f for f in findings if f.subject in _ESSENTIAL and f not in problems]
    if problems:
        _show("Problems" if failed else "To know", problems)
    if failed:
        essential = []
    else:
        _show("The server would run", essential)
    rest = len(findings) - len(problems) - len(essential)
    print(f"\n{rest} more findings: asr-server doctor --all")


def _show(title: str, findings: Sequence[Finding]) -> None:
    """Print a section. Colours only on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(title, "bold"))
    for finding in findings:
        mark = Text(f"  {finding.mark.value:5}", _COLOURS[finding.mark])
        console.print(mark.append(f"{finding.subject:21} {finding.text}", "not bold default"))


def _machine() -> Findings:
    from asr_server.engine import capabilities

    info = _look()
    flags = f"; {', '.join(info.cpu_flags)}" if info.cpu_flags else "; no AVX2, which will be slow"
    yield Finding(Mark.OK, "cpu", f"{info.cores} cores, {info.cpu}{flags}")
    yield Finding(Mark.OK, "memory", f"{info.memory_gib:.1f} GiB, {info.memory_free_gib:.1f} free")
    probed = capabilities.probe()
    if probed.gpu:
        version = f" {'.'.join(map(str, probed.gpus.driver_version))}" if probed.gpus.driver_version else ""
        yield Finding(Mark.OK, "gpu", f"{', '.join(info.gpus) or 'unnamed'}; driver: {probed.gpus.driver}{version}")
    else:
        yield Finding(Mark.OFF, "gpu", "no NVIDIA or AMD driver found")


def _software() -> Findings:
    from asr_server.audio.decode import ffmpeg_version
    from asr_server.engine import capabilities

    yield Finding(Mark.OK, "asr-server", f"{__version__}, Python {platform.python_version()}")
    for name, version in _look().libraries.items():
        if version:
            yield Finding(Mark.OK, name, version)
        elif name in _FOR_QWEN:
            yield Finding(Mark.OFF, name, "not installed; only Qwen3-ASR needs it: pip install '.[cpu]'")
        elif name == "torch":
            yield Finding(Mark.OFF, name, "not installed; GPUs need it: pip install '.[gpu]'")
        else:
            yield Finding(Mark.FAIL, name, "missing: pip install .")
    probed = capabilities.probe()
    if probed.gpu and not probed.torch_cuda:
        found = (
            f"a {probed.gpus.build} build, not for this GPU" if probed.torch else "not installed, the GPU is not used"
        )
        yield Finding(Mark.NOTE, "torch", f"{found}: pip uninstall torch, then pip install '.[gpu]'")
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
    yield _model(settings)
    yield _port(settings.host, settings.port)
    if settings.ssl_certfile:
        reason = certificate_error(settings)
        yield Finding(Mark.FAIL if reason else Mark.OK, "TLS", reason or "certificate and key belong together")
    yield _disk("disk for uploads", Path(tempfile.gettempdir()), settings.max_upload_bytes)
    from asr_server.engine.qwen_asr import model_cache

    yield _disk("disk for models", model_cache.cache_directory(), _LARGEST_MODEL_BYTES)


def _model(settings: Settings) -> Finding:
    from asr_server.cli import models
    from asr_server.core.errors import ModelUnavailable
    from asr_server.engine import plan

    try:
        there, text = models.state(settings)
    except ModelUnavailable as error:
        return Finding(Mark.FAIL, "model", error.message)
    except plan.PlanError:
        return Finding(Mark.OFF, "model", "not examined: the settings above cannot work")
    return Finding(Mark.OK if there else Mark.NOTE, "model", text)


def _port(host: str, port: int) -> Finding:
    if reason := address_error(host, port):
        return Finding(Mark.NOTE, "port", f"{host}:{port} cannot be used ({reason}); choose another with PORT")
    return Finding(Mark.OK, "port", f"{host}:{port} is free")


def _disk(subject: str, directory: Path, needed_bytes: float) -> Finding:
    existing = next(place for place in (directory, *directory.parents) if os.path.exists(place))
    free_bytes = shutil.disk_usage(existing).free
    mark = Mark.OK if free_bytes >= needed_bytes else Mark.NOTE
    advice = "" if mark is Mark.OK else f"; {needed_bytes / _GIB:.1f} GiB are recommended"
    return Finding(mark, subject, f"{free_bytes / _GIB:.1f} GiB free in {directory}{advice}")


def _self_test(settings: Settings) -> Findings:
    """Transcribe a recording twice with the bundled model of the engine that is set: the first time loads it. Then
    speak its words, and transcribe that."""
    from asr_server import demo, feature_list
    from asr_server.cli.backends import LocalBackend, local_settings
    from asr_server.engine.plan import PlanError
    from asr_server.features.moonshine import package as moonshine

    try:
        english = feature_list.resolve(settings).model_id == moonshine.MODEL_ID
    except PlanError:
        return  # reported above
    bundled, sample = (moonshine.MODEL_ID, demo.speech()) if english else ("demo", demo.sample())
    print("  loading the bundled model ...", file=sys.stderr, flush=True)
    try:
        yield from asyncio.run(_transcribe_twice(LocalBackend(local_settings(bundled)), sample))
    except PlanError:
        yield Finding(Mark.FAIL, bundled, "not tested: the settings above cannot work")
    except (Failure, NoServer, UsageError) as error:
        yield Finding(Mark.FAIL, bundled, str(error))


async def _transcribe_twice(backend: LocalBackend, sample: Sample) -> list[Finding]:
    start_s = time.monotonic()
    async with backend:
        await _transcribe(backend, sample)
        loaded_s = time.monotonic()
        text, duration_s = await _transcribe(backend, sample)
        elapsed_s = time.monotonic() - loaded_s
        spoken = await _speak_and_hear(backend, sample)
    right = _words(text) == _words(sample.text)
    speed = f"{duration_s:.1f} s of audio in {elapsed_s:.2f} s, {duration_s / elapsed_s:.1f}x real time"
    return [
        Finding(
            Mark.OK if right else Mark.FAIL, "words", "transcribed correctly by the bundled model" if right else "wrong"
        ),
        Finding(Mark.OK, "speed", f"{speed}; {loaded_s - start_s:.1f} s with loading"),
        spoken,
    ]


async def _speak_and_hear(backend: LocalBackend, sample: Sample) -> Finding:
    """Have the words of the recording spoken as `SPEECH=auto` does, and recognized."""
    from asr_server.demo import Sample
    from asr_server.features.speech_output.engines.espeak import package

    if reason := package.missing():
        return Finding(Mark.OFF, "spoken words", reason)
    with tempfile.TemporaryDirectory() as directory:
        recording = Path(directory, "spoken.wav")
        try:
            seconds = await asyncio.to_thread(_speak, sample.text, recording)
        except AsrError as error:
            return Finding(Mark.FAIL, "spoken words", error.message)
        text, _ = await _transcribe(backend, Sample(recording, sample.text))
    wanted, heard = _words(sample.text), Counter(_words(text))
    found = (Counter(wanted) & heard).total()
    mark = Mark.OK if found >= _LEAST_HEARD * len(wanted) else Mark.NOTE
    return Finding(mark, "spoken words", f"{found} of {len(wanted)} words of {seconds:.1f} s of speech were recognized")


def _speak(text: str, recording: Path) -> float:
    """Write the text as a WAV file. Its duration in seconds. Raises `ModelUnavailable` and `SpeechFailed`."""
    from asr_server.feature_list import FEATURES
    from asr_server.features.speech_output.engines import registry

    file, duration_s = registry.spoken(text, FEATURES)
    recording.write_bytes(file)
    return duration_s


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


async def _transcribe(backend: LocalBackend, sample: Sample) -> tuple[str, float]:
    """Text and duration in seconds of the recording."""
    text, duration_s = "", 0.0
    request = TranscriptionRequest(output=OutputOptions(ResponseFormat.TEXT))
    with sample.recording.open("rb") as recording:
        async with aclosing(backend.process(recording, request)) as events:
            async for event in events:
                if isinstance(event, RecordingDuration):
                    duration_s = event.seconds
                elif isinstance(event, BackendResult):
                    text = event.content
    return text, duration_s


@dataclass(frozen=True, slots=True)
class _System:
    """The hardware and the libraries of this machine."""

    cpu: str
    cores: int  # those this process may use
    cpu_flags: tuple[str, ...]
    memory_gib: float
    memory_free_gib: float
    gpus: tuple[str, ...]  # their names, by the driver's files
    libraries: dict[str, str]  # versions; "" is missing


def _look() -> _System:
    """Read the kernel's and the driver's files and the metadata of installed packages."""
    cpu = _fields(Path("/proc/cpuinfo"))
    memory = _fields(Path("/proc/meminfo"))
    flags = cpu.get("flags", "").split()
    return _System(
        cpu=cpu.get("model name", platform.machine()),
        cores=len(os.sched_getaffinity(0)),
        cpu_flags=tuple(flag for flag in _CPU_FLAGS if flag in flags),
        memory_gib=_limit_gib(_gib(memory.get("MemTotal", "0 kB"))),
        memory_free_gib=_gib(memory.get("MemAvailable", "0 kB")),
        gpus=tuple(
            _fields(file).get("Model", "unknown")
            for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        ),
        libraries={name: _version(name) for name in _LIBRARIES},
    )


def _fields(file: Path) -> dict[str, str]:
    """`name : value` lines; of a name that comes again, the first. Empty where there is no such file."""
    found: dict[str, str] = {}
    if file.is_file():
        for line in file.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return found


def _gib(value: str) -> float:
    return int(value.split()[0]) * 1024 / _GIB


def _limit_gib(total_gib: float) -> float:
    """Return what a container's limit leaves of the machine's memory."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return total_gib if text == "max" else min(total_gib, int(text) / _GIB)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
