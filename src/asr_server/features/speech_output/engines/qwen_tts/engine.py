"""The speech engine `qwen`: the vendor's SDK speaks one sentence in each step."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from loguru import logger

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.environment import prefer
from asr_server.core.errors import (
    AsrError,
    EngineFailed,
    EngineOutOfMemory,
    InvalidInput,
    ModelUnavailable,
    SpeechFailed,
    UnsupportedLanguage,
)
from asr_server.engine import faults, memory
from asr_server.engine.qwen_asr.checkpoint import Wanted, revision_of
from asr_server.engine.qwen_asr.tokenizer import clean, control_tokens
from asr_server.features.speech_output.engines.protocol import (
    Sentence,
    SpeechEngine,
    SpeechFinish,
    SpokenSentence,
    VoiceSample,
)
from asr_server.features.speech_output.engines.qwen_tts import checkpoint
from asr_server.features.speech_output.engines.qwen_tts.model import (
    FRAME_SAMPLES,
    LANGUAGES,
    SpeechModel,
    frame_budget,
    missing,
    traits_of_name,
)
from asr_server.schedule.model import Outcome, RowDelta, RowDone, RowFailed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The number of imitated voices that are kept. Each has an embedding and the codes of at most 30 s: less than 64 KiB.
_KEPT_VOICES = 64


class QwenSpeechEngine(SpeechEngine):
    """A step speaks its sentence to the end, while the rows of other models wait. `on_progress` is called with each
    frame of 80 ms, so that the wait counts as progress.

    `traits` describe the checkpoint or, before it is on this machine, the released checkpoint of that name.
    """

    def __init__(
        self,
        model: SpeechModel,
        on_progress: Callable[[], None] = lambda: None,
        on_load_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._on_progress, self._on_load_progress = model, on_progress, on_load_progress
        self._wanted = Wanted(model.setting, model.model_id)
        self._files = checkpoint.local(self._wanted)
        self.model_id = model.model_id
        self.traits = self._files.traits if self._files is not None else traits_of_name(model.model_id)
        self._sdk: Any = None  # the SDK's model once it is loaded
        self._control: list[str] = []
        self._voices: OrderedDict[str, Any] = OrderedDict()  # the SDK's prompts by `VoiceSample.key`
        self._waiting: dict[int, Sentence] = {}

    @property
    def loaded(self) -> bool:
        return self._sdk is not None

    @property
    def fits(self) -> bool:
        """Return True if the weights seem to fit into the free memory, or their size is unknown."""
        if self._files is None:
            return True
        directory, model = self._files.directory, self._model
        return memory.would_fit(model.device, model.dtype, directory, in_float32=directory / checkpoint.CODEC)

    @property
    def free_slots(self) -> int:
        return 1 - len(self._waiting)

    def load(self) -> None:
        """Fetch, check and load the checkpoint. Raises `ModelUnavailable`, `EngineOutOfMemory`, `EngineFailed`."""
        if reason := missing():
            raise ModelUnavailable(f"{self._wanted}: {reason}.")
        self._files = checkpoint.locate(self._wanted, lambda size_bytes: self._on_load_progress())
        self.traits = self._files.traits
        prefer("OMP_WAIT_POLICY", "PASSIVE")  # as for the recogniser, see `RowEngine.load`
        from asr_server.engine.torch import device
        from asr_server.features.speech_output.engines.qwen_tts import sdk

        self._on_load_progress()
        model = self._model
        dtype, _ = device.prepare(model.device, model.dtype, threads=model.cpu_threads)
        try:
            self._sdk = sdk.load(self._files, device=model.device, dtype=dtype)
        except Exception as error:
            raise faults.load_failure(error) from error
        self._sdk.model.talker.register_forward_hook(self._on_frame)
        self._control = control_tokens(self._sdk.processor.get_added_vocab())
        logger.info("speech checkpoint", model=model.model_id, revision=revision_of(self._files.directory))

    def _on_frame(self, _module: Any, _inputs: Any, output: Any) -> None:
        self._on_progress()
        if not output.logits.isfinite().all():  # the model would choose a code anyway
            raise SpeechFailed("The model's numbers left the range of DTYPE on a sentence of this text.")

    def unload(self) -> None:
        """Free the weights, the voices, and the memory that the C library holds back."""
        self._sdk = None
        self._voices.clear()
        self._waiting.clear()
        gc.collect()
        memory.give_back()

    def admit(self, key: int, item: Sentence, urgent: bool = False) -> None:
        """Take a sentence in. Raises if the checkpoint, once fetched, lacks what its name promised."""
        assert self._sdk is not None, "admit() before load()"
        if not clean(self._control, item.text):
            raise InvalidInput("The text to speak is empty.", param="input")
        self._check(item)
        self._waiting[key] = item

    def _check(self, sentence: Sentence) -> None:
        voices = [voice.id for voice in self.traits.voices]
        if (sentence.sample is not None) != self.traits.imitates:
            raise InvalidInput(
                "A Base checkpoint imitates a recording, and others have voices.",
                code="unsupported_value",
                param="voice",
            )
        if sentence.sample is None and sentence.voice not in voices:
            message = f"This model has no such voice; it has {', '.join(voices)}."
            raise InvalidInput(message, code="unsupported_value", param="voice")
        if sentence.instructions and not self.traits.follows_instructions:
            message = "This model follows no instructions; the 1.7B CustomVoice model does."
            raise InvalidInput(message, code="unsupported_value", param="instructions")
        if sentence.language not in self.traits.languages:
            raise UnsupportedLanguage("This model does not speak the language.", param="language")

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Speak the waiting sentence. Raises `EngineFailed` if no later sentence can succeed."""
        for key, sentence in list(self._waiting.items()):
            budget = frame_budget(sentence.text, LANGUAGES[sentence.language].title())
            try:
                samples = self._spoken(sentence, budget)
            except EngineFailed:
                raise
            except AsrError as error:
                self.drop(key)
                yield RowFailed(key, error)
                continue
            frames = len(samples) // FRAME_SAMPLES
            finish = SpeechFinish.END if frames < budget else SpeechFinish.BUDGET
            self.drop(key)
            yield RowDelta(key, samples)
            yield RowDone(key, SpokenSentence(finish, len(samples)))

    def _spoken(self, sentence: Sentence, budget: int) -> NDArray[np.float32]:
        """Return the samples of a sentence of at most `budget` frames: float32 (n,), in [-1, 1]. Raises `AsrError`."""
        import torch

        text, instructions = (clean(self._control, part) for part in (sentence.text, sentence.instructions))
        language = LANGUAGES[sentence.language]
        # The last code of a run has no frame.
        options: dict[str, Any] = {"text": text, "language": language, "max_new_tokens": budget + 1}
        try:
            with torch.random.fork_rng():
                torch.manual_seed(sentence.seed)
                if sentence.sample is not None:
                    prompt = self._voice(sentence.sample)
                    (samples,), _ = self._sdk.generate_voice_clone(**options, voice_clone_prompt=prompt)
                else:
                    (samples,), _ = self._sdk.generate_custom_voice(
                        **options, speaker=sentence.voice, instruct=instructions or None
                    )
        except Exception as error:
            failure = faults.failure(error, "this sentence")
            if isinstance(failure, (EngineFailed, EngineOutOfMemory, SpeechFailed)):
                raise failure from error
            raise SpeechFailed(f"The model failed on a sentence of this text ({type(error).__name__}).") from error
        clipped: NDArray[np.float32] = samples.clip(-1, 1)
        return clipped

    def _voice(self, sample: VoiceSample) -> Any:
        """Return the SDK's prompt for a voice to imitate; the least recently used voices are forgotten."""
        prompt = self._voices.pop(sample.key, None)
        if prompt is None:
            text = clean(self._control, sample.text)
            audio = sample.audio, SPEECH_RATE
            prompt = self._sdk.create_voice_clone_prompt(audio, text or None, x_vector_only_mode=not text)
        self._voices[sample.key] = prompt
        while len(self._voices) > _KEPT_VOICES:
            self._voices.popitem(last=False)
        return prompt

    def drop(self, key: int) -> None:
        self._waiting.pop(key, None)
