"""A port and a file that nobody may touch, and thirty ways to ask a server to."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from E2Etest.drive import recordings


@dataclass
class Canary:
    """`touched`: `tcp` and `udp` for what reached the port, `file` for every opening of the recording at `path`."""

    port: int
    path: Path
    touched: list[str] = field(default_factory=list)

    def payloads(self) -> list[str]:
        """Addresses and paths in the spellings of browsers, decoders, shells and templates."""
        path, place = str(self.path), f"127.0.0.1:{self.port}"
        up = "../" * 12 + path.lstrip("/")
        return [
            path,
            up,
            "....//" * 12 + path.lstrip("/"),
            up.replace("/", "%2f"),
            f"{path}\x00.wav",
            f"|cat {path}",
            f"$(cat {path})",
            f"`curl http://{place}`",
            f"//{place}/a.wav",
            f"http://localhost:{self.port}/a.m3u8",
            "${jndi:ldap://" + place + "/a}",
            *(f"{scheme}{path}" for scheme in ("file://", "file:", "FILE://localhost", "cache:file:", "concat:", "@")),
            *(f"{scheme}:{path}" for scheme in ("concatf", "subfile,,start,0,end,0,,", "crypto", "async", "unix")),
            *(f"{scheme}://{place}/a.wav" for scheme in ("http", "https", "hls+http", "ftp", "rtmp", "rtsp", "ws")),
            *(f"{scheme}://{place}" for scheme in ("udp", "tcp", "tls")),
        ]

    def files(self, target: str) -> list[bytes]:
        """Playlists, descriptions and containers that point there."""
        quoted, raw = target.replace("&", "&amp;"), target.encode()
        texts = [
            f"#EXTM3U\n#EXTINF:5,\n{target}\n#EXT-X-ENDLIST\n",
            f'#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXT-X-MAP:URI="{target}"\n#EXTINF:5,\n{target}\n#EXT-X-ENDLIST\n',
            f'#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="{target}"\n#EXTINF:5,\n{target}\n#EXT-X-ENDLIST\n',
            f"ffconcat version 1.0\nfile '{target}'\nduration 5\n",
            f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {self.port} RTP/AVP 0\n",
            f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY e SYSTEM "{quoted}">]><MPD><Period><AdaptationSet '
            f'mimeType="audio/mp4"><Representation><BaseURL>&e;{quoted}</BaseURL></Representation></AdaptationSet>'
            "</Period></MPD>",
        ]
        return [*(text.encode() for text in texts), _referring_mp4(raw), _tagged_mp3(raw)]


@contextmanager
def watching(directory: Path) -> Iterator[Canary]:
    """A canary that listens until the block ends."""
    path = directory / "canary.wav"
    path.write_bytes(recordings.sample()[0])
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as packets:
        stream.bind(("127.0.0.1", 0))
        stream.listen()
        canary = Canary(stream.getsockname()[1], path)
        packets.bind(("127.0.0.1", canary.port))
        openings = _openings(path)
        listeners = {"tcp": lambda: stream.accept()[0].close(), "udp": lambda: packets.recv(9), "file": openings}
        for kind, listen in listeners.items():
            threading.Thread(target=_note, args=(canary, kind, listen), daemon=True).start()
        yield canary
        stream.shutdown(socket.SHUT_RDWR)


def _openings(path: Path):
    """Waits for the next opening of a file by anyone, with inotify."""
    libc, opened = ctypes.CDLL(None, use_errno=True), 0x20  # IN_OPEN
    descriptor = libc.inotify_init()
    assert libc.inotify_add_watch(descriptor, os.fsencode(path), opened) >= 0, ctypes.get_errno()
    return lambda: os.read(descriptor, 16)


def _note(canary: Canary, kind: str, hear) -> None:
    while True:
        try:
            hear()
        except OSError:
            return
        canary.touched.append(kind)


def _box(name: bytes, body: bytes) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + name + body


def _referring_mp4(target: bytes) -> bytes:
    """The sample as an MP4 whose data reference says that the samples are elsewhere, by `url ` and by a Mac alias."""
    file = recordings.encoded("mp4", "aac")
    inside = _box(b"url ", b"\0\0\0\1")
    outside = _box(b"url ", b"\0\0\0\0" + target + b"\0")
    growth = len(outside) - len(inside)
    at = file.index(inside)
    changed = bytearray(file[:at] + outside + file[at + len(inside) :])
    for name in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        place = changed.index(name) - 4
        size = int.from_bytes(changed[place : place + 4], "big") + growth
        changed[place : place + 4] = size.to_bytes(4, "big")
    return bytes(changed)


def _tagged_mp3(target: bytes) -> bytes:
    """The sample as an MP3 with tags that name the place: a picture and a linked frame."""
    tags = {b"WXXX": b"\0\0" + target, b"APIC": b"\0-->\0\3\0" + target, b"LINK": b"TIT2" + target + b"\0"}
    frames = b"".join(name + len(body).to_bytes(4, "big") + b"\0\0" + body for name, body in tags.items())
    synchsafe = bytes((len(frames) >> shift) & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\3\0\0" + synchsafe + frames + recordings.encoded("mp3", "mp3")
