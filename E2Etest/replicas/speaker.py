"""Speakers whose words are known, who follow their live session from server to server, and count each word."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np

from asr_server.client.live import ConnectionClosed, LiveClient, LiveOptions
from E2Etest.drive import recordings
from E2Etest.drive.session import data

PIECE_S = 0.1
RESUME_S = 180.0


class Speaker:
    """Speaks the bundled recording again and again at the speed of speech, until it is told to end; follows its session
    from server to server. `longest_silence_s`: between two messages about what is said."""

    def __init__(self, server):
        self.client = LiveClient(server.base, LiveOptions(token=server.key))
        self.finals, self.committed, self.taken_back = {}, {}, []
        self.failure = None
        self.said = self.resumed = 0
        self.longest_silence_s = 0.0
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._speak, self._read)]
        for thread in self._threads:
            thread.start()

    def end(self):
        """Come to the end of the sentence, and wait for the last final."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self.client.close()

    @property
    def text(self):
        return " ".join(text for _, text in sorted(self.finals.items()) if text)

    def _speak(self):
        speech = data(np.concatenate([recordings.samples(), np.zeros(14_400, np.int16)]))
        size = int(PIECE_S * 32_000)
        while not self._ending.is_set():
            for at in range(0, len(speech), size):
                with contextlib.suppress(ConnectionClosed):  # it is kept, and sent again by `resume`
                    self.client.send(speech[at : at + size])
                time.sleep(PIECE_S)
            self.said += 1
        while True:
            try:
                self.client.flush()
                return
            except ConnectionClosed:
                if self.failure is not None:
                    return
                time.sleep(PIECE_S)

    def _read(self):
        try:
            self._follow()
        except Exception as error:  # for the test, which is on another thread
            self.failure = error

    def _follow(self):
        heard_s = None
        while True:
            try:
                for line in self.client.lines():
                    last_s, heard_s = heard_s, time.monotonic()
                    self.longest_silence_s = max(self.longest_silence_s, heard_s - (last_s or heard_s))
                    before = self.committed.get(line.utterance, "")
                    self.committed[line.utterance] = line.committed
                    if not line.committed.startswith(before) or line.utterance in self.finals:
                        self.taken_back.append((before, line))
                    if line.final:
                        self.finals[line.utterance] = line.text
                    if line.ending == "flush":
                        return
            except ConnectionClosed:
                self.resumed += 1
                self.client.resume_within(RESUME_S)


def check(speakers):
    """Assert that each word is there once, and that none that was committed was taken back."""
    words = recordings.sample()[1]
    for speaker in speakers:
        assert speaker.failure is None
        assert speaker.text == " ".join([words] * speaker.said)
        assert speaker.taken_back == []
