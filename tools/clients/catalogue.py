"""The clients: which version, where it comes from, and the scripts that use it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """A client, from the package index of Python (`packages`, itself first), npm (`npm`) or the system (`program`).

    `program` is the command that prints its version. `python` is the version of a Python other than the tests'.
    A `large` client, of gigabytes, is run by name only. `clip` is the recording that it transcribes
    (E2Etest/real_speech). `note` is for the page.
    """

    name: str
    scripts: tuple[str, ...]
    packages: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # other programs that have to be on the PATH
    python: str = ""
    large: bool = False
    clip: str = "jfk"
    note: str = ""

    @property
    def short_name(self) -> str:
        """The name for `make clients` and of the client's directory: "open-webui"."""
        return self.name.lower().translate(str.maketrans(" /", "--", "'@"))

    @property
    def pinned(self) -> str:
        """The version of the first package, or "" for a program of the system."""
        if self.packages:
            return self.packages[0].partition("==")[2]
        return self.npm[0].rpartition("@")[2] if self.npm else ""


CLIENTS = (
    Client("LiteLLM", ("litellm_files.py", "litellm_proxy.py"), ("litellm[proxy]==1.106.2",)),
    Client(
        "LangChain",
        ("langchain_parser.py",),
        ("langchain-community==0.4.2", "openai==3.54.0", "pydub==0.25.1", "imageio-ffmpeg==0.8.1"),
    ),
    Client("Haystack", ("haystack_transcriber.py",), ("haystack-ai==3.4.0", "whisper-haystack==2.0.0")),
    Client("SpeechRecognition", ("speechrecognition.py",), ("SpeechRecognition[openai]==3.17.0",)),
    Client("Groq's SDK", ("groq_sdk.py",), ("groq==1.7.0",)),
    Client("huggingface_hub", ("huggingface_client.py",), ("huggingface_hub==2.4.0",)),
    Client("@huggingface/inference", ("huggingface_inference.mjs",), npm=("@huggingface/inference@4.13.30",)),
    Client("OVOS", ("ovos.py",), ("ovos-stt-plugin-server==0.1.3", "SpeechRecognition==3.17.0")),
    Client("Deepgram's SDK", ("deepgram_client.py",), ("deepgram-sdk==7.17.0",)),
    Client("Deepgram's SDK for JavaScript", ("deepgram_client.mjs",), npm=("@deepgram/sdk@5.13.0",)),
    Client("LlamaIndex", ("llama_index_reader.py",), ("llama-index-readers-whisper==0.5.0",)),
    Client("Semantic Kernel", ("semantic_kernel_audio.py",), ("semantic-kernel==1.45.0",)),
    Client("AG2", ("ag2_live.py",), ("ag2==1.2.1", "openai[realtime]==3.57.0", "numpy==2.4.6")),
    Client("AI SDK", ("ai_sdk.mjs",), npm=("@ai-sdk/openai@4.0.118", "ai@7.0.173")),
    Client("Mastra", ("mastra.mjs",), npm=("@mastra/voice-openai@0.13.2",)),
    Client("OpenAI Agents for JavaScript", ("openai_agents_realtime.mjs",), npm=("@openai/agents@0.20.0",)),
    Client("OpenAI Agents for Python", ("openai_agents_voice.py",), ("openai-agents[voice]==0.24.0",)),
    Client(
        "LiveKit Agents",
        ("livekit_stt.py", "livekit_realtime.py"),
        ("livekit-agents==1.8.9", "livekit-plugins-openai==1.8.9"),
    ),
    Client("Pipecat", ("pipecat_stt.py", "pipecat_realtime.py"), ("pipecat-ai[openai]==1.14.0",)),
    Client(
        "wyoming-openai",
        ("wyoming_bridge.py",),
        ("wyoming-openai==0.8.0",),
        python="3.12",
    ),
    Client(
        "Home Assistant",
        ("home_assistant.py",),
        ("homeassistant==2026.2.3",),
        python="3.13",
        large=True,
        clip="goforward",
        note="a command of three seconds",
    ),
    Client("Open WebUI", ("open_webui_server.py",), ("open-webui==0.12.4",), large=True),
    Client(
        "openapi-python-client",
        ("openapi_python_client.py",),
        ("openapi-python-client==0.29.1",),
    ),
    Client(
        "OpenAPI Generator for Python",
        ("openapi_generator_python.py",),
        ("openapi-generator-cli==7.26.0", "urllib3==2.8.0", "python-dateutil==4.0.0", "pydantic==2.14.4"),
        needs=("java",),
    ),
    Client(
        "OpenAPI Generator for TypeScript",
        ("generated_typescript.py",),
        ("openapi-generator-cli==7.26.0",),
        ("typescript@5.9.3", "@types/node@20.19.43"),
        needs=("java",),
    ),
    Client(
        "@hey-api/openapi-ts",
        ("generated_typescript.py",),
        npm=("@hey-api/openapi-ts@0.95.0", "typescript@5.9.3", "@types/node@20.19.43"),
    ),
    Client("Go", ("go.go",), program=("go", "version")),
    Client("PHP", ("php.php",), program=("php", "-r", "echo phpversion('curl');")),
    Client("Ruby", ("ruby.rb",), program=("ruby", "--version")),
    Client("Perl's LWP", ("perl.pl",), program=("perl", "-MLWP", "-e", "print $LWP::VERSION")),
    Client("curl", ("curl.py",), program=("curl", "--version")),
    Client("FFmpeg", ("ffmpeg.py",), program=("ffmpeg", "-version"), needs=("curl",), note="with curl"),
    Client(
        "GStreamer",
        ("gstreamer.py",),
        program=("gst-launch-1.0", "--version"),
        needs=("curl",),
        note="with curl",
    ),
    Client("HAProxy", ("haproxy.py",), program=("haproxy", "-v")),
    Client("mpv", ("mpv.py",), program=("mpv", "--version")),
    Client("VLC", ("vlc.py",), program=("vlc", "--version")),
)
