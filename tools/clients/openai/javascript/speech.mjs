// A text to audio: item 17.

import assert from "node:assert/strict";

import { add, checkRefusal, client, create, failure } from "./world.mjs";

const TEXT = "Hello there. How are you today?";
const MAGIC = { opus: "OggS", flac: "fLaC", wav: "RIFF" };
const PCM_BYTES_PER_S = 2 * 24_000;
const PCM = { response_format: "pcm" };

const speak = (fields = {}) => client().audio.speech.create({ input: TEXT, model: "tts-1", voice: "alloy", ...fields });
const content = async (fields) => Buffer.from(await (await speak(fields)).arrayBuffer());
const isMp3 = (bytes) => bytes.subarray(0, 3).toString() === "ID3" || (bytes[0] === 0xff && (bytes[1] & 0xe6) === 0xe2);

add(17, "speech-formats", async () => {
  for (const [name, magic] of Object.entries(MAGIC))
    assert.equal((await content({ response_format: name })).subarray(0, 4).toString(), magic);
  assert.deepEqual([...(await content({ response_format: "aac" })).subarray(0, 2)], [0xff, 0xf1]);
  assert.ok(isMp3(await content({ response_format: "mp3" })));
  const seconds = (await content(PCM)).length / PCM_BYTES_PER_S;
  assert.ok(seconds > 1 && seconds < 6);
  assert.ok(isMp3(await content()));
});

add(17, "speech-media-types", async () => {
  const wanted = { mp3: "mpeg", opus: "ogg", aac: "aac", flac: "flac", wav: "wav", pcm: "pcm" };
  for (const [name, kind] of Object.entries(wanted))
    assert.equal((await speak({ response_format: name })).headers.get("content-type"), `audio/${kind}`);
});

add(17, "speech-speed", async () => {
  const usual = (await content(PCM)).length;
  assert.ok(Math.abs((await content({ ...PCM, speed: 2 })).length / usual - 0.5) < 0.02);
  assert.ok(Math.abs((await content({ ...PCM, speed: 0.5 })).length / usual - 2) < 0.04);
});

add(17, "speech-voices", async () => {
  const names = ["alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage"];
  const spoken = new Set();
  for (const voice of [...names, "shimmer", "verse"]) spoken.add((await content({ ...PCM, voice })).toString("base64"));
  assert.ok(spoken.size > 10);
});

add(17, "speech-voice-object", async () => {
  const named = await content({ ...PCM, voice: "nova" });
  assert.ok(named.equals(await content({ ...PCM, voice: { id: "nova" } })));
  assert.ok(!named.equals(await content(PCM)));
});

add(17, "speech-instructions", async () => {
  const told = await speak({ ...PCM, instructions: "Whisper." });
  assert.equal(told.headers.get("x-ignored"), "instructions");
  assert.ok(Buffer.from(await told.arrayBuffer()).equals(await content(PCM)));
});

add(17, "speech-streaming-response", async () => {
  const input = `${TEXT} `.repeat(40);
  const pieces = [];
  for await (const piece of (await speak({ ...PCM, input, seed: 1 })).body) pieces.push(Buffer.from(piece));
  assert.ok(pieces.length > 1);
  assert.ok(Buffer.concat(pieces).equals(await content({ ...PCM, input })));
});

add(17, "speech-sse", async () => {
  const answer = await speak({ ...PCM, stream_format: "sse" });
  assert.equal(answer.headers.get("content-type"), "text/event-stream; charset=utf-8");
  const lines = (await answer.text()).split("\n").filter((line) => line.startsWith("data: "));
  const events = lines.map((line) => JSON.parse(line.slice("data: ".length)));
  const done = events.pop();
  assert.ok(events.every(({ type }) => type === "speech.audio.delta"));
  const samples = Buffer.concat(events.map(({ audio }) => Buffer.from(audio, "base64")));
  assert.ok(samples.equals(await content(PCM)));
  assert.equal(done.type, "speech.audio.done");
  assert.equal(done.usage.input_tokens, TEXT.length);
  assert.equal(done.usage.total_tokens, done.usage.input_tokens + done.usage.output_tokens);
});

add(17, "speech-models", async () => {
  const names = (await client().models.list()).data.filter(({ task }) => task === "text-to-speech").map(({ id }) => id);
  for (const name of ["tts-1", "tts-1-hd", "gpt-4o-mini-tts"]) assert.ok(names.includes(name));
  for (const model of names) assert.ok((await content({ ...PCM, model })).equals(await content(PCM)));
});

const REFUSED = {
  "speech-no-voice": { voice: "nobody" },
  "speech-no-text": { input: " " },
  "speech-format": { response_format: "m4a" },
  "speech-speed-zero": { speed: 0 },
  "speech-long": { input: "a".repeat(20_001) },
  "speech-model": { model: "whisper-1" },
};
for (const [name, fields] of Object.entries(REFUSED))
  add(17, name, async () => checkRefusal(name, await failure(() => speak(fields))));

add(17, "transcription-model", async () =>
  checkRefusal("transcription-model", await failure(() => create({ model: "tts-1" }))),
);
