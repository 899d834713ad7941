"""`make verify`: compare released checkpoints with Qwen's SDK on this machine, and write a report to post.

Each model transcribes the bundled recordings three times: by the SDK in float32, by the server in float32, and by the
server with its defaults. In float32 the words of recordings up to 8 s, one window of the encoder, must be equal. In
longer ones they may differ, because the SDK's encoder leaves out the mask between windows.
"""

from __future__ import annotations

import functools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from asr_server import demo, feature_list
from asr_server.core import settings
from asr_server.engine import capabilities
from asr_server.engine.protocol import AlignItem, Utterance
from asr_server.engine.qwen_asr import checkpoint
from asr_server.engine.qwen_asr.aligner import QwenAligner
from E2Etest.drive import recordings
from E2Etest.drive.recordings import Clip, plain_words, word_errors
from tools.bench import engines

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "build" / "verify.md"
MODELS, ALIGNER = ("Qwen/Qwen3-ASR-0.6B", "Qwen/Qwen3-ASR-1.7B"), "Qwen/Qwen3-ForcedAligner-0.6B"
WINDOW_S = 8
_EXACT = {"dtype": "float32", "quantize": "none", "runtime": "torch"}


@dataclass(frozen=True, slots=True)
class Run:
    """The texts that one program heard in the recordings."""

    program: str
    texts: list[str]
    load_s: float
    seconds: float
    peak_gb: float  # of the GPU, or of the process without one


def clips() -> list[Clip]:
    """Return the bundled recordings: real speech, and words of the demonstration checkpoint in a synthetic voice."""
    spoken, length_s = demo.sample(), len(recordings.samples()) / engines.RATE
    return [*recordings.real_clips(), Clip(spoken.recording, spoken.text, "English", "", "demo", length_s)]


def by_sdk(directory: Path) -> Run:
    """Transcribe with the SDK in float32, one recording at a time."""
    from tools.sdk import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

    from qwen_asr import Qwen3ASRModel  # isort: skip

    began = time.perf_counter()
    model = Qwen3ASRForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval().to(_device())
    # The SDK has the end ids of the released checkpoints built in; those of the demonstration checkpoint are others.
    ends = model.generation_config.eos_token_id
    model.generate = functools.partial(model.generate, eos_token_id=ends, pad_token_id=ends[0])
    package = Qwen3ASRModel("transformers", model, Qwen3ASRProcessor.from_pretrained(directory))
    loaded = time.perf_counter()
    texts = [package.transcribe((recordings.waveform(clip.path), engines.RATE))[0].text for clip in clips()]
    return _run("Qwen's SDK, float32", texts, began, loaded)


def by_server(directory: Path, chosen: dict[str, Any]) -> Run:
    """Transcribe with the server's engine and these settings. Recordings share batches."""
    began = time.perf_counter()
    engine = engines.load(str(directory), preload=False, **chosen)
    loaded = time.perf_counter()
    found, _ = engines.run(engine, [Utterance(recordings.waveform(clip.path)) for clip in clips()])
    program = f"asr-server, {engine.info.dtype}, {'one at a time' if chosen else 'defaults'}"
    return _run(program, [one.text for one in found], began, loaded)


def _run(program: str, texts: list[str], began: float, loaded: float) -> Run:
    took_s = time.perf_counter() - loaded
    if _device() == "cuda":
        peak_bytes = torch.cuda.max_memory_allocated()
    else:
        peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Run(program, texts, loaded - began, took_s, peak_bytes / 1e9)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def same_times(directory: Path) -> tuple[int, int]:
    """Align the texts of the short recordings: the words, and those that get the SDK's times."""
    from tools import sdk  # noqa: F401 - it imports the package without librosa

    from qwen_asr import Qwen3ForcedAligner  # isort: skip

    package = Qwen3ForcedAligner.from_pretrained(str(directory), dtype="float32")
    package.model.to(_device())
    chosen = settings.load(model_id="demo", forced_aligner_id=str(directory), preload=False, **_EXACT)
    aligner = QwenAligner(feature_list.resolve(chosen, capabilities.probe()))
    aligner.locate()
    aligner.load()
    items = [AlignItem(recordings.waveform(c.path), c.text, "English") for c in clips() if c.seconds <= WINDOW_S]
    *_, found = aligner.align(items)
    same = list[bool]()
    for item, ours in zip(items, found, strict=True):
        last_s = len(item.audio) / engines.RATE
        for word, piece in zip(
            package.align((item.audio, engines.RATE), item.text, "English")[0], ours.pieces, strict=True
        ):
            times_ms = [1000 * min(at_s, last_s) for at_s in (word.start_time, word.end_time)]
            same.append(abs(times_ms[0] - piece.start_ms) <= 1 and abs(times_ms[1] - piece.end_ms) <= 1)
    return len(same), sum(same)


def compared(name: str) -> tuple[list[str], bool]:
    """Return the report on a model, and whether the server's words are the SDK's where they must be."""
    began, directory = time.perf_counter(), checkpoint.locate(name)
    found_s = time.perf_counter() - began
    exact = {**_EXACT, "max_batch": 1}
    runs = [_alone(by_sdk, directory), _alone(by_server, directory, exact), _alone(by_server, directory, {})]
    size_gb = sum(path.stat().st_size for path in directory.iterdir()) / 1e9
    lines, equal = report(runs)
    where = f"{size_gb:.1f} GB, found or downloaded in {found_s:.0f} s."
    return ["", f"## {name} {checkpoint.revision_of(directory)}", "", where, "", *lines], equal


def report(runs: list[Run]) -> tuple[list[str], bool]:
    """Compare the SDK's run, the server's in float32, and others."""
    spoken, texts = clips(), [run.texts for run in runs]
    lines = [
        "| | load | transcribe | times real time | peak memory | word errors | recordings with the SDK's words |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_row(run, spoken, texts[0]) for run in runs),
    ]
    for clip, *heard in zip(spoken, *texts, strict=True):
        if len(set(heard)) > 1:
            lines += ["", f"{clip.path.name}, {clip.seconds:.0f} s:", ""]
            lines += [f"- {run.program}: {text}" for run, text in zip(runs, heard, strict=True)]
    short = [clip.seconds <= WINDOW_S for clip in spoken]
    return lines, all(a == b for is_short, a, b in zip(short, *texts[:2], strict=True) if is_short)


def _row(run: Run, spoken: list[Clip], sdk: list[str]) -> str:
    words, length_s = [plain_words(clip.text) for clip in spoken], sum(clip.seconds for clip in spoken)
    errors = sum(map(word_errors, words, map(plain_words, run.texts))) / sum(map(len, words))
    short = [clip.seconds <= WINDOW_S for clip in spoken]
    equal = [is_short for is_short, a, b in zip(short, run.texts, sdk, strict=True) if a == b]
    return (
        f"| {run.program} | {run.load_s:.1f} s | {run.seconds:.1f} s | {length_s / run.seconds:.1f} "
        f"| {run.peak_gb:.1f} GB | {errors:.1%} "
        f"| {sum(equal)} of {sum(short)} up to {WINDOW_S} s, {len(equal)} of {len(spoken)} in all |"
    )


def _alone(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a process of its own, which returns its memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _machine() -> list[str]:
    command = [sys.executable, "-m", "asr_server", "doctor", "--quick", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    return [f"- {one['subject']}: {one['text']}" for part in ("machine", "software") for one in found[part]]


def main(names: list[str]) -> int:
    """Verify models and an aligner, by default the released ones. Return 1 if words differ from the SDK's."""
    models, aligner = (names[:-1], names[-1]) if names else (MODELS, ALIGNER)
    lines = [f"# Released checkpoints, {date.today().isoformat()}", "", *_machine()]
    reports = [compared(name) for name in models]
    for found, _ in reports:
        lines += found
    words, same = _alone(same_times, checkpoint.locate(aligner, aligner=True))
    lines += [
        "",
        f"## {aligner}",
        "",
        f"{same} of {words} words in recordings up to {WINDOW_S} s have the SDK's times.",
    ]
    lines += ["The SDK repairs times that run backwards in another way."]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(REPORT.read_text(encoding="utf-8"))
    if all(equal for _, equal in reports):
        print(f"The words are the SDK's. Please post {REPORT.relative_to(ROOT)} as an issue.", file=sys.stderr)
        return 0
    print(f"Words differ from the SDK's. Please post {REPORT.relative_to(ROOT)} as an issue.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
