// Recordings in, transcripts out: items 1 to 3, 5 to 7, 16 and 18.

import assert from "node:assert/strict";
import { createReadStream, readFileSync } from "node:fs";
import { createServer } from "node:http";

import { add, client, collect, create, file, MODEL, recording, TOLD, WORDS } from "./world.mjs";

async function heard(given) {
  assert.equal((await create({ file: given })).text, WORDS);
}

add(1, "file-typed", () => heard(new File([readFileSync(recording("sample"))], "a.wav", { type: "audio/wav" })));
add(1, "file-untold", async () => heard(await file("sample", "recording")));
add(1, "file-unicode", async () => heard(await file("sample", "Gespräch mit 王 \u{1f600}.wav")));
add(1, "file-stream", () => heard(createReadStream(recording("sample"))));

add(1, "file-response", async () => {
  const elsewhere = createServer((_, answer) => answer.end(readFileSync(recording("sample"))));
  await new Promise((resolve) => elsewhere.listen(0, "127.0.0.1", resolve));
  try {
    await heard(await fetch(`http://127.0.0.1:${elsewhere.address().port}/a.wav`));
  } finally {
    elsewhere.closeAllConnections();
    elsewhere.close();
  }
});

add(1, "usage", async () => {
  const { text, usage } = await create();
  assert.deepEqual({ text, usage }, { text: WORDS, usage: { type: "duration", seconds: 5 } });
});

add(1, "aliases", async () => {
  const listed = (await client().models.list()).data;
  const names = listed.filter(({ task }) => task === "automatic-speech-recognition").map(({ id }) => id);
  assert.ok(names.length > 4);
  for (const model of names) assert.equal((await create({ model })).text, WORDS);
});

// A cue may break between any two words.
const LINES = WORDS.replaceAll(" ", "\\s");
const SRT_TIMES = "\\d\\d:\\d\\d:\\d\\d,\\d{3} --> \\d\\d:\\d\\d:\\d\\d,\\d{3}";

add(2, "text", async () => assert.equal(await create({ response_format: "text" }), `${WORDS}\n`));

add(2, "srt", async () => {
  const result = await create({ response_format: "srt" });
  assert.equal(typeof result, "string");
  assert.match(result, new RegExp(`^1\\n${SRT_TIMES}\\n${LINES}\\n\\n$`));
});

add(2, "vtt", async () => {
  const result = await create({ response_format: "vtt" });
  assert.equal(typeof result, "string");
  assert.match(result, new RegExp(`^WEBVTT\\n\\n${SRT_TIMES.replaceAll(",", "\\.")}\\n${LINES}\\n\\n$`));
});

add(2, "text-media-type", async () => {
  for (const response_format of ["text", "srt", "vtt"]) {
    const body = { file: await file(), model: MODEL, response_format };
    const answer = await client().audio.transcriptions.create(body).asResponse();
    assert.equal(answer.headers.get("content-type"), "text/plain; charset=utf-8");
    await answer.text();
  }
});

add(2, "json", async () => {
  const result = await create({ response_format: "json" });
  assert.equal(typeof result, "object");
  assert.equal(result.text, WORDS);
});

async function verbose(fields = {}) {
  return await create({ file: await file("spans"), response_format: "verbose_json", ...fields });
}

function inOrder(parts, duration) {
  const times = parts.flatMap(({ start, end }) => [start, end]);
  assert.deepEqual(times, times.toSorted((a, b) => a - b));
  assert.ok(times[0] >= 0 && times.at(-1) <= duration);
}

function checkSegments({ segments, text, duration }) {
  assert.ok(segments.length > 0);
  assert.equal(segments.map((segment) => segment.text.trim()).join(" "), text);
  inOrder(segments, duration);
}

function checkWords({ words, text, duration }) {
  assert.deepEqual(words.map(({ word }) => word), text.split(" "));
  inOrder(words, duration);
}

add(3, "verbose", async () => {
  const result = await verbose();
  checkSegments(result);
  assert.equal(result.words ?? null, null);
});

add(3, "verbose-segment", async () => {
  const result = await verbose({ timestamp_granularities: ["segment"] });
  checkSegments(result);
  assert.equal(result.words ?? null, null);
});

add(3, "verbose-word", async () => {
  const result = await verbose({ timestamp_granularities: ["word"] });
  checkWords(result);
  assert.equal(result.segments ?? null, null);
});

add(3, "verbose-both", async () => {
  const result = await verbose({ timestamp_granularities: ["word", "segment"] });
  checkWords(result);
  checkSegments(result);
});

add(3, "verbose-language", async () => {
  const { language, task, duration } = await verbose();
  assert.deepEqual([language, task, typeof duration], ["english", "transcribe", "number"]);
});

add(5, "logprobs", async () => {
  const { logprobs } = await create({ include: ["logprobs"] });
  assert.equal(Buffer.from(logprobs.flatMap(({ bytes }) => bytes)).toString().trim(), WORDS);
  assert.ok(logprobs.every(({ token, logprob }) => token && logprob <= 0));
  assert.ok(logprobs.some(({ logprob }) => logprob < 0));
});

add(5, "no-logprobs", async () => assert.equal((await create()).logprobs, undefined));

const STRATEGY = { type: "server_vad", threshold: 0.5, prefix_padding_ms: 300, silence_duration_ms: 500 };

async function heardWith(fields) {
  assert.equal((await create(fields)).text, WORDS);
}

add(6, "chunking-auto", () => heardWith({ chunking_strategy: "auto" }));
add(6, "chunking-object", () => heardWith({ chunking_strategy: STRATEGY }));
add(6, "chunking-json", () => heardWith({ chunking_strategy: JSON.stringify(STRATEGY) }));

add(6, "languages", async () => {
  for (const languages of [["en"], ["en", "zh"]]) {
    const answer = await create({ languages });
    assert.deepEqual([answer.text, answer.language_code], [WORDS, "en"]);
  }
  assert.match((await create({ languages: ["zh", "de"] })).language_code, /^(zh|de)$/);
});

add(6, "lists", async () => {
  for (const key of ["include", "include[]", "include[0]"]) {
    assert.ok((await create({ [key]: "logprobs" })).logprobs.length > 0);
  }
  assert.ok((await create({ include: '["logprobs"]' })).logprobs.length > 0);
  const joined = await create({ response_format: "verbose_json", timestamp_granularities: "segment,segment" });
  assert.ok(joined.segments.length > 0);
});

add(6, "empty-fields", () => heardWith({ language: "", prompt: "" }));
add(6, "extra-fields", () => heardWith({ vad_filter: true, x_vendor: { a: [1, 2] } }));

add(7, "prompt", async () => {
  const { text } = await create({ prompt: 'He said "kitchen",\r\n\tthen <|im_end|> — naïve? 厨房!' });
  assert.ok(text.includes("kitchen lights"), text);
});

add(7, "unicode-text", async () => {
  const given = async (fields) => await create({ file: await file("chinese", "a.flac"), ...fields });
  const { text } = await given();
  assert.match(text, /^[\u4e00-\u9fff]+$/u);
  assert.equal(await given({ response_format: "text" }), `${text}\n`);
  assert.equal((await given({ response_format: "verbose_json" })).text, text);
  assert.equal((await collect(await given({ stream: true }))).at(-1).text, text);
});

add(18, "models-list", async () => {
  const { data } = await client().models.list();
  const names = data.map(({ id }) => id);
  for (const name of ["demo", "whisper-1", "gpt-4o-transcribe"]) assert.ok(names.includes(name));
  for (const { object, created } of data) assert.deepEqual([object, Number.isInteger(created)], ["model", true]);
});

add(18, "models-retrieve", async () => assert.equal((await client().models.retrieve("whisper-1")).id, "whisper-1"));

add(18, "models-slash", async () => {
  const found = await client("absent").models.retrieve(TOLD.absent_model);
  assert.equal(found.id, TOLD.absent_model);
});

function translated(fields = {}) {
  const opened = createReadStream(recording("sample"));
  return client().audio.translations.create({ file: opened, model: MODEL, ...fields });
}

add(16, "translation", async () => assert.equal((await translated()).text, WORDS));

add(16, "translation-formats", async () => {
  for (const response_format of ["text", "srt", "vtt"]) {
    const result = await translated({ response_format });
    assert.equal(typeof result, "string");
    assert.match(result, new RegExp(LINES));
  }
});

add(16, "translation-verbose", async () => {
  const { language, text, task, segments } = await translated({ response_format: "verbose_json" });
  assert.deepEqual({ language, text, task }, { language: "english", text: WORDS, task: "translate" });
  assert.deepEqual(segments.map((segment) => segment.text), [WORDS]);
});
