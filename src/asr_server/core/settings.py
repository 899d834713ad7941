"""Settings from the environment (and a `.env` file), checked once at start.

Every field is an environment variable with the same name in upper case; `docs/run/configuration.md` is generated from
this class and its bases. No setting is silently ignored: the server does not start with one that this machine cannot
satisfy, and says why (see `engine/plan.py`).
"""

from __future__ import annotations

import base64
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import AnyHttpUrl, BaseModel, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from asr_server.core.environment import prefer, process_environment
from asr_server.core.setting_types import Dtype, Endpointing, Fusion, LogLevel, ModelLibrary, Quantization


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to a server that listens on `host`."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class EngineSettings(BaseModel):
    """The settings that the plan of the engine is resolved from."""

    model_id: str = Field(
        "auto",
        pattern=r"[^,\s]",
        description="Model: a hub id, also `ID@REVISION`, a directory, `moonshine-tiny-en` (English, bundled), or "
        "`demo` (for tests); `auto`: `Qwen/Qwen3-ASR-1.7B` on a GPU, `Qwen/Qwen3-ASR-0.6B` on a CPU. Of several, "
        "separated by commas, requests pick one; the first is the default.",
    )
    model_aliases: str = Field(
        "",
        description="Comma-separated further names of the model for clients; `*` stands for any characters.",
    )
    forced_aligner_id: str = Field(
        "Qwen/Qwen3-ForcedAligner-0.6B",
        min_length=1,
        description="Model for word times: a hub id, a directory, or `demo` (default with MODEL_ID=demo).",
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="`auto`, `cpu`, `cuda` or `cuda:N`.")
    dtype: Dtype = Field(
        Dtype.AUTO,
        description="float32, bfloat16, float16; `auto`: bfloat16 where it is fast, else float16 (GPU) or float32.",
    )
    runtime: ModelLibrary = Field(
        ModelLibrary.AUTO,
        description="Library that runs Qwen3-ASR: `openvino` (CPU) or `torch`; `auto`: `openvino` on a CPU if "
        "installed.",
    )
    quantize: Quantization = Field(
        Quantization.AUTO,
        description="8-bit weights: `int8`, `fp8` (GPU), `none`, or `auto`: `int8` on CPUs. `int4` (CPU): 4-bit "
        "weights of the language model.",
    )
    cpu_threads: int = Field(
        0, ge=0, le=1024, description="Threads that compute; 0: one for each core, within a container's quota."
    )
    numa_node: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        None, description="NUMA node whose CPUs and memory the engine uses; `auto`: that of the GPU."
    )
    use_cuda_graphs: bool | Literal["auto"] = Field("auto", description="CUDA graphs for passes; `auto`: NVIDIA only.")
    fuse: Fusion = Field(
        Fusion.AUTO,
        description="Fuse small operations: `kernels` (GPU), `compile` or `none`; `auto`: `kernels` on NVIDIA's "
        "GPUs with Triton.",
    )
    max_batch: int = Field(0, ge=0, le=256, description="Most spans in one batch; 0: 8 on a CPU, 64 on a GPU.")
    kv_budget_mb: int = Field(0, ge=0, description="MiB for keys and values; 0: from free memory.")
    vllm_base_url: AnyHttpUrl | None = Field(
        None,
        description="URL, with its `/v1`, of a server with OpenAI's transcriptions that runs the model. "
        "`MODEL_ID` is its name there; `auto`: the first listed.",
    )
    vllm_api_key: SecretStr | None = Field(None, description="Key of that server.")
    use_vllm: bool = Field(False, description="Start `vllm serve` to run the model.")
    fast_model_id: str = Field("", description="Smaller model for `DUAL_MODEL` and `USE_SPECULATIVE`.")
    dual_model: bool = Field(
        False, description="`FAST_MODEL_ID` writes live partials, `MODEL_ID` finals and recordings."
    )
    use_speculative: bool = Field(
        False, description="`FAST_MODEL_ID` drafts recordings and finals, `MODEL_ID` verifies the draft."
    )
    encoder_path: str = Field("", description="File of `asr-server export` from which the audio encoder runs.")

    @field_validator("vllm_api_key")
    @classmethod
    def _fits_into_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        key = value.get_secret_value() if value else ""
        if not (key.isascii() and key.isprintable()):
            raise ValueError("a key may have printable ASCII characters only: it must fit into a header")
        return value


class SpeechSettings(BaseModel):
    """The engines that speak, and their limits."""

    speech: str = Field(
        "auto",
        min_length=1,
        description="Speech engine: `espeak`, `piper`, `piper/VOICE` or a path of Piper voices, a directory or "
        "hub id of Qwen3-TTS, `off`, or `auto`: Piper in English, else eSpeak NG.",
    )
    speech_clone_model: str = Field("", description="Base checkpoint of Qwen3-TTS that imitates voices.")
    speech_language: str = Field(
        "en", min_length=2, max_length=20, description="Language of texts in Latin letters if the request names none."
    )
    max_speech_chars: int = Field(
        20_000,
        ge=1,
        le=200_000,
        description="Longest text of a request, in characters; longer ones are jobs.",
    )


_LEAST_RUN_S = 14_400.0
_KEY = re.compile(r"[A-Za-z0-9._~+/=-]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@,]+", re.IGNORECASE)


class SettingsError(ValueError):
    """One or more settings are invalid; the message has a line for each: name, value, what is expected."""


# Settings of the servers that users migrate from: at the start, the log warns of each one that is set.
_SUPERSEDED = {
    "WS_WINDOW_MAX_S": "set WS_UTTERANCE_MAX_S",
    "WS_OVERLAP_SIZE": "the model says how much audio around the speech it needs; remove it",
    "WS_FLUSH_SILENCE_MS": "set VAD_MIN_SILENCE_MS",
    "ASR_USE_SERVER_VAD": "set ENDPOINTING=manual for false",
    "USE_CAUSAL_ENCODER": "a checkpoint that is tuned for a causal encoder gets one; remove it",
    "WS_BUFFER_SIZE": "a partial follows 0.45 s of new speech, or as soon as the engine is free; remove it",
    **dict.fromkeys(("ONNX_ENCODER_PATH", "TRT_ENCODER_PATH"), "set ENCODER_PATH"),
    "TRANSLATE_TEMPERATURE": "running text is translated at 0.3; remove it",
    "TRANSLATE_SRT_TEMPERATURE": "subtitles are translated at 0.1; remove it",
    **dict.fromkeys(("SSE_CHUNK_SECONDS", "SSE_OVERLAP_SECONDS"), "recordings are cut at pauses; remove it"),
    **dict.fromkeys(("WORKER_HOST", "WORKER_PORT"), "the engine process listens on a Unix socket; remove it"),
}


class JobSettings(BaseModel):
    """The place of jobs, and their limits."""

    jobs_database_url: SecretStr = Field(
        SecretStr(""),
        description="PostgreSQL database of jobs that several servers share: "
        "`postgresql://user:password@host/name`; empty: `STATE_DIR`.",
    )
    jobs_database_mb: float = Field(
        20_480.0, gt=0, description="MiB of all jobs in the database; beyond it a new job gets 503."
    )
    job_ttl: float = Field(86_400.0, gt=0, description="Seconds for which a finished job is kept.")
    max_jobs: int = Field(1_000, ge=1, description="Limit of waiting and running jobs; more get 429.")

    @field_validator("jobs_database_url")
    @classmethod
    def _is_a_database(cls, value: SecretStr) -> SecretStr:
        if url := value.get_secret_value():
            try:
                parts = urlsplit(url)
                known = parts.scheme in ("postgresql", "postgres") and parts.port != 0
            except ValueError:
                known = False
            if not known:
                raise ValueError("it must be postgresql://user:password@host:port/name")
        return value


_HOST_PATTERN = re.compile(r"\*|(?:\*\.)?[^*:]+|[^*:]+:[0-9]+")


@dataclass(frozen=True, slots=True)
class ListedHosts:
    """Hosts that the operator lists. Only names with a port, and networks, may be private: the owner of any other name
    could point it at a private address."""

    patterns: frozenset[str]  # in lower case: names, `*.` and the end of a name, `*`, or a name with a port
    networks: tuple[IPv4Network | IPv6Network, ...]

    @classmethod
    def of(cls, listed: str) -> ListedHosts:
        """Return the hosts of a comma-separated list. Raises `ValueError`, also for a network with host bits set."""
        patterns, networks = set(), []
        for item in _listed(listed.lower()):
            if "/" in item or item.count(":") > 1 or item.replace(".", "").isdecimal():
                networks.append(ip_network(item))
            elif _HOST_PATTERN.fullmatch(item):
                patterns.add(item)
            else:
                raise ValueError(f"{item!r} is no host name, and not of the form *.example.com or name:port")
        return cls(frozenset(patterns), tuple(networks))

    def match(self, host: str) -> bool:
        """Return True if the host, in lower case, is listed without a port."""
        labels = host.split(".")
        ends = {".".join(["*", *labels[number:]]) for number in range(1, len(labels))}
        return not self.patterns.isdisjoint({"*", host, *ends})


class OutgoingSettings(BaseModel):
    """The features that send requests, all of which are off by default, and the hosts that they may reach."""

    url_hosts: str = Field(
        "",
        description="Comma-separated hosts of recordings that callers may name by URL: `*` (all public ones), "
        "`*.example.com`; in an intranet a name with its port, an address or a network: "
        "`minio.lan:9000,10.1.2.0/24`. Empty: none.",
    )
    webhook_hosts: str = Field("", description="Jobs: hosts for callbacks, listed as in `URL_HOSTS`; empty: none.")
    webhook_secret: SecretStr = Field(
        SecretStr(""),
        description="Jobs: key that signs callbacks, `whsec_` and 24 to 64 bytes in base64; two, comma-separated, "
        "while keys change.",
        validate_default=True,
    )

    @field_validator("url_hosts", "webhook_hosts")
    @classmethod
    def _are_hosts(cls, value: str) -> str:
        ListedHosts.of(value)
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _are_webhook_keys(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        if any(not 24 <= len(key) <= 64 for key in _webhook_keys(value)):
            raise ValueError("a key is whsec_ and 24 to 64 random bytes in base64")
        if info.data.get("webhook_hosts") and not _webhook_keys(value):
            raise ValueError("WEBHOOK_HOSTS needs a key, as receivers could not tell a callback from a forgery")
        return value

    @property
    def webhook_keys(self) -> tuple[bytes, ...]:
        return _webhook_keys(self.webhook_secret)


def _webhook_keys(secret: SecretStr) -> tuple[bytes, ...]:
    """Return the keys. Raises `ValueError` if one is not base64."""
    keys = _listed(secret.get_secret_value())
    return tuple(base64.b64decode(key.removeprefix("whsec_"), validate=True) for key in keys)


class Settings(OutgoingSettings, JobSettings, SpeechSettings, EngineSettings, BaseSettings):
    """The settings of the server. They do not change while it runs."""

    model_config = SettingsConfigDict(
        env_file=".env",
        env_file_encoding="utf-8",
        case_sensitive=False,
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        protected_namespaces=(),
        allow_inf_nan=False,  # JSON has no such numbers, and some settings are sizes of buffers
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8100, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    ssl_certfile: str = Field(
        "",
        description="PEM file with certificate chain and private key, or two files: `fullchain.pem,privkey.pem`; "
        "empty: no TLS.",
    )

    use_granian: bool = Field(False, description="Serve with Granian instead of uvicorn.")

    api_keys: SecretStr = Field(
        SecretStr(""), description="Comma-separated keys, one of which every request needs. Empty: no key is needed."
    )
    allow_anonymous: bool = Field(
        False,
        validate_default=True,
        description="Allow `HOST` to accept other machines without `API_KEYS`.",
    )
    allowed_origins: str = Field(
        "",
        description="Comma-separated origins of web pages that may call (`https://app.example.com`); `*`: all.",
    )
    key_max_requests: int = Field(
        0, ge=0, description="Concurrent requests and live sessions per key, or per address without keys; 0: no limit."
    )
    key_rate: int = Field(0, ge=0, description="Requests per minute and key, or address without keys; 0: no limit.")

    idle_timeout: float = Field(
        120.0, ge=0, description="Seconds without work after which the model is unloaded; 0: never."
    )
    preload: bool = Field(False, description="Load and warm up the model before the server is ready.")
    request_timeout: float = Field(
        300.0, gt=0, description="Seconds without progress, loading aside, after which a request fails with 504."
    )
    gateway_mode: bool = Field(
        False,
        description="Start the engine process with the first work, and end it after IDLE_TIMEOUT to free its memory.",
    )
    engine_hang_s: float = Field(
        15.0,
        gt=0,
        description="Seconds without progress of a busy engine, loading aside, until `/livez` fails and an engine "
        "process is replaced.",
    )

    drain_delay_s: float = Field(
        0.0,
        ge=0,
        le=300,
        description="Seconds after SIGTERM in which the server is unready but accepts work.",
    )

    engine_process: bool | Literal["auto"] | Annotated[str, Field(pattern="^unix:/", max_length=107)] = Field(
        "auto",
        description="Run the engine in a process of its own; `auto`: on a GPU; `unix:PATH`: use the shared engine "
        "of `asr-server engine --listen PATH`.",
    )
    max_upload_mb: float = Field(200.0, gt=0, description="Largest request body, in MiB.")
    max_audio_s: float = Field(7200.0, gt=0, description="Longest recording, in seconds of audio.")
    max_queue_audio_s: float = Field(
        14400.0,
        gt=0,
        description="Limit of unanswered seconds of audio, and of speech; more gets 429.",
    )

    profanity_lists: str = Field(
        "",
        description="Folder with the words that `profanity` masks: `en.txt`, `de.txt`; a word or phrase a line.",
    )
    speakers: str = Field(
        "auto",
        min_length=1,
        description="Models that tell speakers apart: `embedded` (bundled), a directory or hub id of ONNX files, "
        "`off`, or `auto`: bundled where they run.",
    )

    state_dir: Path = Field(
        Path("~/.local/state/asr-server"),
        description="Directory for jobs, voices, and converted weights; each server needs its own.",
    )

    endpointing: Endpointing = Field(
        Endpointing.AUTO,
        description="Live: how a pause is judged. `semantic`: a model estimates whether the speaker has finished; "
        "`pause`: by its length; `manual`: only a flush ends an utterance; `auto`: `semantic` if that model is "
        "installed.",
    )
    vad_min_silence_ms: int = Field(
        500, ge=32, le=10_000, description="Live: milliseconds of silence that end an utterance."
    )
    ws_utterance_max_s: float = Field(
        30.0,
        ge=5,
        le=120,
        description="Live: longest utterance in seconds.",
    )
    ws_resume_s: float = Field(
        30.0,
        ge=0,
        le=3_600,
        description="Live: seconds for which a session waits for a client to reconnect.",
    )
    server_name: str = Field(
        "live",
        pattern="^[A-Za-z0-9-]{1,32}$",
        description="Live: prefix of session ids, by which a proxy finds the server of a session.",
    )
    max_live_sessions: int = Field(256, ge=1, description="Live: limit of open sessions; more get 429.")

    openai_base_url: AnyHttpUrl | None = Field(
        None,
        description="Translation: URL, with its `/v1`, of an endpoint with OpenAI's chat completions.",
    )
    openai_api_key: SecretStr | None = Field(None, description="Translation: key of the endpoint.")
    translate_model: str = Field("", description="Translation: model at the endpoint; empty: no translation.")
    translate_concurrency: int = Field(4, ge=1, le=64, description="Translation: concurrent requests to the endpoint.")

    log_level: LogLevel = Field(LogLevel.INFO, description="TRACE, DEBUG, INFO, WARNING or ERROR.")
    log_json: bool = Field(False, description="Write each log line as one JSON object.")

    @field_validator("log_level", mode="before")
    @classmethod
    def _is_in_capitals(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("ssl_certfile")
    @classmethod
    def _are_files(cls, value: str) -> str:
        files = _listed(value)
        if len(files) > 2 or (value and not files):
            raise ValueError("it must be one file, or two")
        for file in files:
            if not os.path.isfile(file):  # pathlib raises if the directory is not readable
                raise ValueError(f"{file}: there is no such file, or its directory is not readable")
        return value

    @field_validator("api_keys")
    @classmethod
    def _are_keys(cls, value: SecretStr) -> SecretStr:
        keys = _listed(value.get_secret_value())
        if value.get_secret_value() and not keys:
            raise ValueError("it contains no key, and an empty list would accept requests without a key")
        for key in keys:
            if not _KEY.fullmatch(key):
                raise ValueError("a key may have letters, digits and -._~+/= only: it must fit into a header and a URL")
            if key.startswith("ek_"):
                raise ValueError("a key must not begin with ek_, the prefix of ephemeral keys")
        return value

    @field_validator("allow_anonymous")
    @classmethod
    def _is_closed(cls, value: bool, info: ValidationInfo) -> bool:
        if {"host", "api_keys"} <= info.data.keys() and not value:
            host, keys = info.data["host"], _listed(info.data["api_keys"].get_secret_value())
            if not keys and not is_loopback(host):
                raise ValueError(
                    f"HOST={host} accepts connections from other machines, and there are no API_KEYS: set API_KEYS, "
                    "or HOST=127.0.0.1, or ALLOW_ANONYMOUS=true to serve everyone who can connect"
                )
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        for origin in _listed(value):
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin such as https://app.example.com or http://localhost:3000"
                )
        return value

    @property
    def tls_files(self) -> tuple[str, ...]:
        return _listed(self.ssl_certfile)

    @property
    def keys(self) -> tuple[str, ...]:
        return _listed(self.api_keys.get_secret_value())

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(origin.lower() for origin in _listed(self.allowed_origins))

    @property
    def aliases(self) -> tuple[str, ...]:
        return _listed(self.model_aliases)

    @property
    def model_names(self) -> tuple[str, ...]:
        return _listed(self.model_id)

    @property
    def longest_run_s(self) -> float:
        """Seconds after which a running job or any request fails: a recording may take twice its length."""
        return max(_LEAST_RUN_S, 2 * self.max_audio_s, self.request_timeout)

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    @property
    def max_upload_bytes(self) -> int:
        return int(self.max_upload_mb * 1024 * 1024)


def load(**overrides: Any) -> Settings:
    """Read the environment; `overrides` (from the command line) take precedence. Raises `SettingsError`.

    `HF_` variables in `.env`, for the hub's library, become environment variables of the process.
    """
    try:
        settings = Settings(**overrides)
        for name, value in dotenv_values(".env").items():
            if name.startswith("HF_") and value:
                prefer(name, value)
        return settings
    except ValidationError as error:
        raise SettingsError("\n".join(_line(e) for e in error.errors())) from None
    except OSError as error:
        raise SettingsError(f".env in the working directory cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(".env in the working directory is not UTF-8") from None


def superseded() -> dict[str, str]:
    """Return variables that have no effect, with advice: settings of other servers, and misspelt names in `.env`."""
    settings, file = [name.upper() for name in Settings.model_fields], {name.upper() for name in dotenv_values(".env")}
    others = (file | {name.upper() for name in os.environ}) - set(settings)
    # Names in the environment are not checked: SSL_CERT_FILE, for instance, is OpenSSL's.
    meant = {name: get_close_matches(name, settings, n=1, cutoff=0.85) for name in file & others}
    misspelt = {name: f"it is no setting, and {found[0]} is one" for name, found in sorted(meant.items()) if found}
    return misspelt | {name: advice for name, advice in _SUPERSEDED.items() if name in others}


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment for a child process with the same settings."""
    shown = settings.model_dump(mode="json", include=settings.model_fields_set)
    # The dump has asterisks in place of secrets, but the child process needs the secrets.
    secrets = {name: value for name in shown if isinstance(value := getattr(settings, name), SecretStr)}
    values = {**shown, **{name: value.get_secret_value() for name, value in secrets.items()}}
    return process_environment(**{name.upper(): _spelled(value) for name, value in values.items()})


def _spelled(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _listed(value: str) -> tuple[str, ...]:
    return tuple(part for item in value.split(",") if (part := item.strip()))


def _line(error: Any) -> str:
    name = str(error["loc"][0]).upper()
    field = Settings.model_fields.get(name.lower())
    meaning = f" ({field.description})" if field and field.description else ""
    secret = field and SecretStr in (field.annotation, *get_args(field.annotation))
    value = "***" if secret else repr(error["input"])
    # pydantic adds a prefix that means nothing to a reader of the message.
    return f"{name}={value}: {error['msg'].removeprefix('Value error, ')}{meaning}"
