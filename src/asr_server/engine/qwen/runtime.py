"""A loaded model and the schedule of its forward passes: encode, prefill, step. Lives as long as the weights do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen import loading, prompt
from asr_server.engine.qwen.decoder import Row, SlotDecoder
from asr_server.engine.qwen.encoder import WindowedEncoder
from asr_server.engine.qwen.frontend import log_mel


class Runtime:
    """Weights with an encoder, a prompt builder and a decoder over them. Every call runs in inference mode."""

    out_of_memory: tuple[type[BaseException], ...] = (torch.OutOfMemoryError, MemoryError)

    def __init__(self, parts: loading.Parts) -> None:
        self._parts = parts
        self._encoder = WindowedEncoder(parts.tower)
        self._prompts = prompt.PromptBuilder(parts.processor)
        self.decoder = SlotDecoder(parts.text, parts.head, parts.end_ids)

    @classmethod
    def load(cls, directory: Path, *, device: str, dtype: str) -> Runtime:
        """Load a checked checkpoint. Raises `ModelUnavailable`."""
        return cls(loading.load(directory, device=device, dtype=dtype))

    @torch.inference_mode()
    def prefill(self, key: int, work: Utterance, budget: int) -> tuple[Row, int, int]:
        """Encode the audio, run the prompt, take the first token. Returns the row, its audio and its text tokens."""
        mel = log_mel(self._parts.processor.feature_extractor, work.audio)
        (audio,) = self._encoder([mel])
        around = self._prompts.build(context=work.context, language=work.language)
        embeds = torch.cat([self.decoder.embed(around.before), audio, self.decoder.embed(around.after)])
        row = Row(key, budget, work.temperature, self._generator(work))
        self.decoder.prefill(row, embeds)
        return row, len(audio), len(around.before) + len(around.after)

    def _generator(self, work: Utterance) -> torch.Generator | None:
        if work.temperature == 0:
            return None
        return torch.Generator(self._parts.device).manual_seed(work.seed)

    @torch.inference_mode()
    def step(self, rows: int) -> None:
        """One token for each of the first `rows` rows."""
        self.decoder.step(rows)

    @torch.inference_mode()
    def drop(self, row: Row) -> None:
        """Take a row out of the batch."""
        self.decoder.drop(row)

    def read(self, ids: list[int], language: str | None) -> tuple[str, str]:
        """Generated ids to (language, text)."""
        return prompt.read(self._parts.tokenizer, ids, language)

    def memory(self) -> dict[str, Any]:
        """The fields of `EngineInfo` that depend on the device; empty on a CPU."""
        device = self._parts.device
        if device.type != "cuda":
            return {}
        mib = 1024 * 1024
        return {
            "gpu_name": torch.cuda.get_device_name(device),
            "gpu_allocated_mb": torch.cuda.memory_allocated(device) // mib,
            "gpu_reserved_mb": torch.cuda.memory_reserved(device) // mib,
        }


def release_accelerator() -> None:
    """Give cached accelerator memory back to the driver; only worth its cost when a model was unloaded."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
