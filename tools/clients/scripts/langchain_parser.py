"""LangChain: `OpenAIWhisperParser`, which sends the recording as MP3."""

import sys
from contextlib import redirect_stdout

import imageio_ffmpeg
import pydub
from langchain_community.document_loaders.parsers.audio import OpenAIWhisperParser
from langchain_core.documents.base import Blob

recording, server = sys.argv[1:]
# pydub, with which LangChain writes the MP3, needs the program ffmpeg; this package has one.
pydub.AudioSegment.converter = imageio_ffmpeg.get_ffmpeg_exe()


def transcribe(**options: str) -> str:
    parser = OpenAIWhisperParser(api_key="none", base_url=f"{server}/v1", **options)
    # The parser prints what it is doing.
    with redirect_stdout(sys.stderr):
        (document,) = parser.lazy_parse(Blob.from_path(recording))
    return document.page_content


for wanted in ("json", "verbose_json", "text", "srt", "vtt"):
    text = transcribe(response_format=wanted)
    print(f"# {wanted}\n{text}")
