// What is refused, and as which error it arrives: items 4, 10, 13 and 18.

import assert from "node:assert/strict";
import { createReadStream } from "node:fs";

import { add, checkRefusal, client, create, failure, file, MODEL, openai, recording, WORDS } from "./world.mjs";

const TEXT = Buffer.from("this is plain text and no recording, whatever its name says\n".repeat(20));
const ROUTE = "/audio/transcriptions";

const given = (name) => async () => create({ file: await file(name) });
const fields = (some) => () => create(some);
const named = (bytes, name, some = {}) => async () => create({ file: await openai.toFile(bytes, name), ...some });

function form(parts) {
  const body = new FormData();
  for (const [name, value] of Object.entries(parts)) body.append(name, value);
  return () => client().post(ROUTE, { body });
}

const known = (reference, some = {}) =>
  fields({ known_speaker_names: ["agent"], known_speaker_references: [reference], ...some });

const CALLS = [
  [4, "known-alone", known("data:;base64,AAAA")],
  [4, "no-data-url", known("https://example.com/agent.wav", { response_format: "diarized_json" })],
  [10, "stream-of-text", named(TEXT, "a.mp3", { stream: true })],
  [13, "unknown-model", fields({ model: "nobody" })],
  [13, "no-file", form({ model: MODEL, other: new Blob(["x"]) })],
  [13, "file-as-text", form({ model: MODEL, file: "text" })],
  [13, "not-audio", named(Buffer.alloc(5000), "upload")],
  [13, "text-as-mp3", named(TEXT, "a.mp3")],
  [13, "empty-file", named(Buffer.alloc(0), "a.wav")],
  [13, "header-only", given("header-only")],
  [13, "too-short", given("too-short")],
  [13, "too-long", given("too-long")],
  [13, "too-large", given("too-large")],
  [13, "too-large-stream", () => create({ file: createReadStream(recording("too-large-stream")) })],
  [13, "language-format", fields({ language: "tlh!" })],
  [13, "language-unknown", fields({ language: "is" })],
  [13, "format-unknown", fields({ response_format: "rtf" })],
  [13, "granularity-alone", fields({ timestamp_granularities: ["word"] })],
  [13, "granularity-unknown", fields({ timestamp_granularities: ["syllable"], response_format: "verbose_json" })],
  [13, "include-alone", fields({ include: ["logprobs"], response_format: "text" })],
  [13, "temperature", fields({ temperature: 7 })],
  [13, "json-body", () => client().post(ROUTE, { body: { model: MODEL, file: "x" } })],
  [13, "unknown-route", () => client().post("/nothing", { body: {} })],
  [13, "wrong-method", () => client().get(ROUTE)],
  [18, "models-unknown", () => client().models.retrieve("nope")],
];

for (const [item, name, call] of CALLS) add(item, name, async () => checkRefusal(name, await failure(call)));

add(13, "request-id", async () => {
  assert.match((await create())._request_id, /^req_/);
  assert.match((await client().models.list().asResponse()).headers.get("x-request-id"), /^req_/);
});

add(13, "reply-headers", async () => {
  const { headers } = await client().models.list().asResponse();
  assert.equal(headers.get("openai-version"), "2020-10-01");
  assert.match(headers.get("openai-processing-ms"), /^\d+$/);
});

add(13, "keyless", async () => {
  assert.equal((await create({}, { at: client("main", { apiKey: "sk-whatever" }) })).text, WORDS);
  assert.equal((await create({}, { options: { headers: { Authorization: null } } })).text, WORDS);
});
