import assert from "node:assert/strict";
import { test } from "node:test";
import { characters, cleaned, decoded, hasWords, part, placeOf, sentences, whole } from "./speech-text.js";

test("characters are counted as the server counts them", () => {
  assert.equal(characters("a😀é"), 3);
  assert.equal(placeOf("a😀b", 2), 3);
});

test("what the server refuses becomes a blank, and places stay", () => {
  assert.equal(cleaned("a\u0000b\fc\ud800d\u0085"), "a b c d ");
  assert.equal(cleaned("one\ttwo\r\n😀"), "one\ttwo\r\n😀");
});

test("a file may be UTF-8, UTF-16 with its mark, or Windows-1252", () => {
  const utf16 = [...Buffer.from("\ufeffGrüße", "utf16le")];
  for (const bytes of [[...Buffer.from("Grüße")], [...Buffer.from("\ufeffGrüße")], utf16, [0x47, 0x72, 0xfc, 0xdf, 0x65]])
    assert.equal(decoded(new Uint8Array(bytes)), "Grüße");
});

test("the parts of a text are the text, and none ends inside a character", () => {
  const text = "😀".repeat(5000) + "end";
  let joined = "";
  for (let at = 0, isLast = false; !isLast; ) {
    const one = part(text, at);
    const piece = text.slice(at, one.to);
    assert.equal(cleaned(piece), piece);
    joined += piece;
    ({ to: at, isLast } = one);
  }
  assert.equal(joined, text);
  assert.equal(whole("a😀", 2), 1);
  assert.equal(whole("a😀", 3), 3);
});

test("sentences lie in the text without the blanks around them, and one without a word is none", () => {
  const text = "  One here.  Two, 😀 there!\n\n***\n\n「三です。」四。";
  assert.deepEqual(sentences(text, "en").map(({ start, end }) => text.slice(start, end)), ["One here.", "Two, 😀 there!", "「三です。」", "四。"]);
  assert.deepEqual([hasWords("*** 😀 …"), hasWords("…三")], [false, true]);
});
