"""Random transcripts in six scripts, with times as they come and as they should not."""

import random
from types import SimpleNamespace

from asr_server.core.transcript import TimeSource, Word
from asr_server.subtitle.cue_segmentation import Passage
from asr_server.text import words

_WORDS = {
    "latin": "a I the hello world yesterday market naïve über señor don't well-known 3.14 2024 information ça №",
    "cjk": "今天 天气 很好 我们 去 北京 大学 看看 吧 明日 も 東京タワー へ 行きましょう キャッチャー 人々 한국",
    "arabic": "مرحبا كيف حالك ذهبت إلى السوق لأن أختي طلبت مني شراء بعض التفاح في الطريق مُحَمَّد ٢٠٢٤",
    "thai": "วันนี้ อากาศ ดี มาก เลย นะครับ เรา ไป เที่ยว ทะเล กัน เมื่อวาน ผม เจอ เพื่อนเก่า ตลาด ๒๕๖๗",
    "devanagari": "नमस्ते यह एक परीक्षण है कल मैं बाज़ार गया था क्योंकि मेरी बहन ने मुझे खरीदने के लिए कहा २०२४",
}
VOCABULARY = {script: line.split() for script, line in _WORDS.items()}
VOCABULARY["mixed"] = [word for script in list(VOCABULARY) for word in VOCABULARY[script][:8]] + ["WiFi", "😀", "100%"]
MARKS = {
    "latin": [", ", ". ", "? ", " — ", "! ", '." '],
    "cjk": ["，", "。", "！", "」", "、", "”。"],
    "arabic": ["، ", ". ", "؟ ", "» "],
    "thai": [" ", "ๆ ", " "],
    "devanagari": [", ", "। ", "? "],
    "mixed": [", ", "。", " ", "」", "! ", ") "],
}
OPENING = {"latin": '"(¿', "cjk": "「“（", "arabic": "«", "thai": "(", "devanagari": "“", "mixed": "「"}


def text(rng, script, length):
    """A text of about `length` words; now and then one that is wider than any line."""
    parts = []
    for _ in range(length):
        word = rng.choice(VOCABULARY[script])
        if script in ("latin", "arabic") and rng.random() < 0.01:
            word *= 15
        opening = rng.choice(OPENING[script]) if rng.random() < 0.05 else ""
        closing = rng.choice(MARKS[script]) if rng.random() < 0.2 else ("" if script in ("cjk", "thai") else " ")
        if script == "mixed" and rng.random() < 0.3:
            closing = ""
        parts.append(opening + word + closing)
    return "".join(parts).strip()


def transcripts(script, count, seed=0):
    """Yield that many transcripts, always the same: up to four passages of two speakers, and their words, most of usual
    length, some of 1 ms or 9 s, some dense."""
    rng = random.Random(f"{script} {seed}")
    for _ in range(count):
        tempo = rng.choice([60, 200, 200, 300, 600])  # ms for a word
        now, passages = rng.randrange(2000), []
        for _ in range(rng.randint(1, 4)):
            passage_text = text(rng, script, rng.randint(1, 14))
            timed = []
            for word in words.split(passage_text):
                draw = rng.random()
                length = 1 if draw < 0.01 else 9000 if draw < 0.015 else rng.randint(tempo // 2, tempo * 2)
                timed.append(Word(word, now, now + length, TimeSource.ALIGNED))
                now += length + rng.choice([0, 0, 0, 0, 20, 100, 300, 700 if rng.random() < 0.3 else 0])
            passages.append(Passage(passage_text, timed, rng.choice(["", "", "A", "B"])))
            now += rng.choice([0, 0, 300, 1500])
        yield SimpleNamespace(passages=passages, words=[word for passage in passages for word in passage.words])
