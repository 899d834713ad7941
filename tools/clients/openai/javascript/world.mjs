// What the scenarios stand on: the servers they were told of, the client under test, and the table of cases.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

export const TOLD = JSON.parse(readFileSync(process.argv[2], "utf8"));
export const WORDS = TOLD.words;
export const MODEL = "whisper-1";
const FREED_WITHIN_MS = 1000;
const CLASSES = {
  400: "BadRequestError",
  404: "NotFoundError",
  429: "RateLimitError",
  503: "InternalServerError",
  504: "InternalServerError",
};

const require = createRequire(`${process.env.OPENAI_PACKAGES_AT}/`);
export const openai = require(process.env.OPENAI_PACKAGE);

export const ENTRIES = [];

/** Put a function into the table. Cases of one `aside` line run one after another, beside the rest. */
export function add(item, name, perform, { aside = null } = {}) {
  ENTRIES.push({ item, name, perform, aside });
}

/** The client as it is, without retries unless asked for. */
export function client(server = "main", options = {}) {
  return new openai.OpenAI({ baseURL: TOLD.servers[server], apiKey: "any", maxRetries: 0, ...options });
}

/** The path of a recording. */
export function recording(name) {
  return TOLD.recordings[name];
}

/** A recording as a file with a name. */
export function file(name = "sample", called = "a.wav") {
  return openai.toFile(readFileSync(recording(name)), called);
}

/** `audio.transcriptions.create`, by default of the sample on the main server. */
export async function create(fields = {}, { at = client(), options = {} } = {}) {
  const body = { file: await file(), model: MODEL, ...fields };
  return await at.audio.transcriptions.create(body, options);
}

/** All events of a stream. */
export async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

/** The error that `call` ends in. */
export async function failure(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new Error("no error");
}

/** Whether the server holds no audio, and nothing waits or runs. */
export async function idle(server) {
  const { queue } = await (await fetch(TOLD.health[server])).json();
  return !["live", "interactive", "bulk", "running", "audio_held_s"].some((name) => queue[name]);
}

/** Fail unless the server is idle within a second after `left` (performance.now). */
export async function checkFreed(server, left) {
  while (!(await idle(server))) {
    assert.ok(performance.now() - left < FREED_WITHIN_MS, "work goes on after the caller left");
    await sleep(20);
  }
}

/** Fail unless the client's error is what the table says of this refusal. */
export function checkRefusal(name, error) {
  const wanted = TOLD.refusals[name];
  assert.ok(error instanceof openai.APIError, `${error}`);
  assert.equal(error.constructor.name, CLASSES[wanted.status] ?? "APIError");
  const seen = { status: error.status, code: error.code, param: error.param, type: error.type };
  assert.deepEqual(seen, { status: wanted.status, code: wanted.code, param: wanted.param, type: wanted.type });
  assert.ok(error.error.message.length > 0);
  assert.ok(error.message.includes(error.error.message));
  assert.ok(error.requestID);
}

/** An id and the options that give it to a request and all its retries. */
export function namedRequest() {
  const name = `req_${randomUUID()}`;
  return { name, options: { headers: { "x-request-id": name } } };
}

/** How the attempts of a named request ended, as the server's log says a moment later. */
export async function outcomes(server, name) {
  await sleep(300);
  const log = readFileSync(TOLD.logs[server], "utf8");
  return [...log.matchAll(new RegExp(` id=${name} .* outcome=(\\S+)`, "g"))].map((match) => match[1]);
}
