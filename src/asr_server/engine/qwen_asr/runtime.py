"""A loaded Qwen3-ASR model: turns utterances into rows, runs passes over them, and turns tokens into answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from loguru import logger

from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory, InvalidInput
from asr_server.engine import faults, memory
from asr_server.engine.feature import Plan
from asr_server.engine.loops import expected_tokens
from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.qwen_asr import answer, checkpoint
from asr_server.engine.qwen_asr.files import CheckpointFiles
from asr_server.engine.qwen_asr.prefix_cache import PrefixCache
from asr_server.engine.qwen_asr.rows import AnswerRow, Rows
from asr_server.engine.qwen_asr.tokenizer import ChatTemplate, Prompt, PromptBuilder
from asr_server.engine.qwen_asr.windows import Clip, LoadedEncoder
from asr_server.engine.row import Draft, KeptTokens

if TYPE_CHECKING:
    from asr_server.engine.torch.passes import Capture

# Records passes with a `Capture`, calling a function before each, and returns how many.
Recorder = Callable[["Capture", Callable[[], None]], int]
# Parameters of the released aligner, for one that is not downloaded yet: an encoder of 24 x 1024, a language model of
# 28 x 1024 with 151,936 words, a head of 5,000 slots.
_RELEASED_ALIGNER = 920_000_000
_REFUSED = Option("use_cuda_graphs", False, "", "steps cannot be recorded on this GPU; the log says why")


@dataclass(slots=True, eq=False)
class Admitted:
    """An admitted utterance. The engine sets the fields after `stream`."""

    key: int
    utterance: Utterance
    prompt: Prompt
    clip: Clip
    budget: int  # the most new tokens
    stream: answer.AnswerStream | None  # reads the tokens that were sent; None if no text is wanted
    urgent: bool = False  # it goes before work that is not urgent
    row: AnswerRow | None = None  # None while it has no slot
    lacks_room: bool = False  # there was no room to seat it, and other rows may go before it
    overtaken: int = 0  # rows that were seated before it meanwhile
    sent: int = 0  # tokens that were handed out

    @property
    def waits(self) -> bool:
        """True until its prompt has run to its end."""
        return self.row is None or self.row.input is not None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.before) + self.clip.tokens + len(self.prompt.after)

    @property
    def expected_tokens(self) -> int:
        known = max(len(self.utterance.prefix), len(self.utterance.draft))
        return min(self.budget, expected_tokens(len(self.utterance.audio)) + known)

    @property
    def row_tokens(self) -> int:
        return self.prompt_tokens + self.expected_tokens


@dataclass(eq=False)
class Runtime:
    """The weights of a checkpoint and the code that runs them in one of the libraries, with a prompt builder and the
    cache of sessions. Lives as long as the weights."""

    files: CheckpointFiles
    encoder: LoadedEncoder
    decoder: Rows
    capacity: memory.Capacity
    options: tuple[Option, ...] = ()  # the plan's options, completed by loading
    recorders: tuple[Recorder, ...] = ()  # if passes can be recorded; the first one records the decoder's steps
    # frees file contents that the first passes have read and copied
    release: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        files, self._encoder = self.files, self.encoder.encoder
        self.prompts = PromptBuilder(files.tokenizer, ChatTemplate.load(files.directory), files.audio_id)
        self.answers = answer.AnswerReader(files.tokenizer)
        self.prefill_policy = memory.PrefillPolicy()
        self._refused = False  # the device cannot record the decoder's steps
        self.prefix_cache = PrefixCache(limit_bytes=self.capacity.prefix_cache_bytes)
        self._audio = self.encoder.audio(self._encoder.log_mel(files.mel), self.prefix_cache)

    def prepare(self, key: int, utterance: Utterance, budget: int) -> Admitted:
        """Run the front end and build the prompt of a row. Raises `InvalidInput` or `EngineOutOfMemory` if it is too
        long."""
        rendered = self.prompts.build(context=utterance.context, language=utterance.language)
        with self.decoder.computing():
            clip = self._audio.prepare(utterance, rendered.before)
        stream = answer.AnswerStream(self.answers, forced=utterance.language is not None) if utterance.stream else None
        work = Admitted(key, utterance, rendered, clip, budget, stream)
        if work.row_tokens > self.files.positions:
            raise InvalidInput("The prompt is too long for this model.", param="prompt")
        if work.row_tokens >= self.capacity.tokens:
            raise EngineOutOfMemory("The prompt and the audio take more memory than KV_BUDGET_MB allows.")
        work.budget = min(budget, self.files.positions - work.prompt_tokens)
        return work

    def tokens(self, work: Admitted) -> int:
        """Return how many prompt and audio tokens the row's prefill has to run."""
        kept = self._kept(work)
        return work.prompt_tokens - (kept.count if kept is not None else 0)

    def _kept(self, work: Admitted) -> KeptTokens | None:
        """Return the cached keys and values of the prompt and the session's closed windows, or only of the prompt."""
        kv = work.clip.kv
        return kv if kv is not None else self.prefix_cache.prompt(work.prompt.before)

    def seat(self, work: Admitted) -> None:
        """Give admitted work a slot."""
        utterance, rendered, kv = work.utterance, work.prompt, self._kept(work)
        # If the language is forced, or any language may come, the answer may begin with any token.
        among = utterance.languages if utterance.language is None else ()
        row = AnswerRow(
            key=work.key,
            budget=work.budget,
            temperature=utterance.temperature,
            generator=self.decoder.generator(utterance.seed) if utterance.temperature else None,
            draft=Draft(utterance.draft) if utterance.draft else None,
            forced=utterance.prefix,
            beginnings=self.prompts.beginnings(among),
            urgent=work.urgent,
            watched=not utterance.language,
            expected=work.expected_tokens,
        )
        proposal = row.proposal()
        before = rendered.before if kv is None else ()
        after = (*rendered.after, *proposal)
        given = self.decoder.prompt(before, work.clip.windows(), after, tail=1 + len(proposal))
        self.decoder.seat(row, given, kv)
        work.row = row

    def _encode(self, parts: Sequence[tuple[AnswerRow, int]]) -> None:
        """Encode the audio that these parts of prompts still need."""
        inputs = [(row.input, count) for row, count in parts if row.input is not None]
        missing = [given.missing(count) for given, count in inputs]
        windows = [window for own in missing for window in own]
        encoded = iter(self._encoder(windows) if windows else [])
        for (given, _), own in zip(inputs, missing, strict=True):
            given.add([next(encoded) for _ in own])

    def attempt(self, run: Callable[[], object]) -> AsrError | None:
        """Run passes. Returns why they failed, or None if they succeeded. Raises `EngineFailed`.

        If memory runs out, free the caches and run the passes once more. That happens outside of `except`, where the
        traceback would keep all tensors of the failed pass.
        """
        for first in (True, False):
            try:
                with self.decoder.computing():
                    run()
                return None
            except Exception as error:  # whatever one row provokes, the others continue
                failure = faults.failure(error)
            if isinstance(failure, EngineFailed):
                raise failure
            short = isinstance(failure, EngineOutOfMemory) and not self.is_full(failure)
            if not (first and short and self._give_back()):
                break
        return failure

    @staticmethod
    def is_full(failure: AsrError) -> bool:
        return isinstance(failure.__cause__, memory.NoRoom)

    def _give_back(self) -> bool:
        """Free memory that no answer needs. Returns True if there may be more memory now."""
        held = len(self.prefix_cache) > 0
        self.prefix_cache.clear()
        memory.give_back()
        return held or self.decoder.device != "cpu"

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """Call `on_progress` inside every pass that may take long, from now on.

        Only on a CPU: a GPU's passes are queued in milliseconds, of which each call would take a noticeable part.
        """
        if self.decoder.device == "cpu":
            for part in (self._encoder, self.decoder.model):
                part.on_layer = on_progress

    def record(self, on_each: Callable[[], None]) -> None:
        """Record passes as CUDA graphs, before the first row. Raises `EngineFailed`.

        Passes that cannot be recorded run as usual, and a warning is logged.
        """
        from asr_server.engine.torch.passes import CudaCapture

        began_s, capture, counts = time.perf_counter(), CudaCapture(self.decoder.model.device), list[int]()

        def record(recorder: Recorder) -> None:
            counts.append(recorder(capture, on_each))

        for recorder in self.recorders:
            failure = self.attempt(partial(record, recorder))
            if failure is not None:
                logger.opt(exception=failure.__cause__).warning("passes are not recorded", reason=failure.message)
                self._refused |= recorder == self.recorders[0]
        took_s = round(time.perf_counter() - began_s, 1)
        logger.info("passes are recorded as CUDA graphs", count=sum(counts), took_s=took_s)

    def prefill(self, parts: Sequence[tuple[AnswerRow, int]], *, ahead: bool = False) -> None:
        """Run the given number of tokens of each row's prompt; see `Rows.next_input` and `Rows.prefill`."""
        began_s = time.perf_counter()
        with self.decoder.computing():
            self._encode(parts)
            self.decoder.prefill(parts, ahead=ahead)
        self.prefill_policy.note_prefill(sum(count for _, count in parts), time.perf_counter() - began_s)

    def step(self, *, ahead: bool = False) -> None:
        """Run one forward pass for all rows that decode; see `Rows.step`."""
        began_s = time.perf_counter()
        with self.decoder.computing():
            self.decoder.step(ahead=ahead)
        self.prefill_policy.note_step(time.perf_counter() - began_s)

    def drop(self, row: AnswerRow) -> None:
        """Take a row out of the batch. Raises `EngineFailed`."""
        try:
            with self.decoder.computing():
                self.decoder.drop(row)
        except Exception as error:
            raise faults.failure(error) from error

    def keep(self, row: AnswerRow, work: Admitted) -> None:
        """Cache a row's prompt, which has run, for other rows, and its session's closed windows for the next partial.

        Running out of memory is no failure here: later rows are only slower. Raises `EngineFailed`.
        """
        utterance, before, copy = work.utterance, work.prompt.before, partial(self.decoder.copy, row)
        self.prefix_cache.forget_unused()
        try:
            with self.decoder.computing():
                self.prefix_cache.put_prompt(before, copy)
                if utterance.session is not None:
                    self._audio.keep(utterance, before, work.clip, copy)
        except Exception as error:
            if not isinstance(failure := faults.failure(error), EngineOutOfMemory):
                raise failure from error

    @property
    def dtype(self) -> str:
        return str(self.decoder.model.dtype).removeprefix("torch.")

    def figures(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "options": (*self.options, *[_REFUSED] * self._refused),
            "slots": self.capacity.rows,
            "kv_budget_mb": (self.capacity.rows_bytes + self.capacity.prefix_cache_bytes) // memory.MIB,
            "kv_cache_mb": self.decoder.nbytes // memory.MIB,
            "sessions_mb": self.prefix_cache.held_bytes // memory.MIB,
            **self.decoder.figures(),
        }


def aligner_bytes(plan: Plan, item_bytes: int) -> int:
    """Return the bytes of the aligner's weights, `item_bytes` each, and of its activations; 0 without an aligner."""
    if not plan.aligner_id:
        return 0
    directory = checkpoint.local(plan.aligner_id, aligner=True, revision=plan.aligner_revision)
    count = memory.parameters(directory) if directory is not None else _RELEASED_ALIGNER
    return count * item_bytes + memory.PASS_BYTES
