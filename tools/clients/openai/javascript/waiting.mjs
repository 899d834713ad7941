// Retries, time limits of the server and idle connections: cases that mostly wait, beside the others. Items 13 to 15.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { add, checkRefusal, client, create, failure, file, idle, namedRequest, outcomes, WORDS } from "./world.mjs";

const IDLE_MS = 10_000;

/** The limited server at work on more than it takes beside it; ends with the controller's abort. */
async function full() {
  const stream = await create({ file: await file("held"), stream: true }, { at: client("limited") });
  await stream[Symbol.asyncIterator]().next();
  return stream.controller;
}

/** The error, and how each attempt ended as the server saw it. */
async function refused(server, name, settings) {
  const request = namedRequest();
  const at = client(server, settings);
  const error = await failure(async () => create({ file: await file(name) }, { at, options: request.options }));
  return { error, ends: await outcomes(server, request.name) };
}

/** `make` once, however often it is asked for. */
function once(make) {
  let made;
  return () => (made ??= make());
}

// `undefined` is the client's own default: two retries.
const OWN = { maxRetries: undefined };

async function busy() {
  const holding = await full();
  try {
    // After the time that the refusal names there would be room.
    return await refused("limited", "sample", { maxRetries: 0 });
  } finally {
    holding.abort();
  }
}
const late = once(async () => {
  while (!(await idle("limited"))) await sleep(20); // the server may not have noticed yet that the last caller left
  return refused("limited", "held", OWN);
});
const absent = once(() => refused("absent", "sample", { maxRetries: 1 }));

const LIMITED = { aside: "limited" };
const ABSENT = { aside: "absent" };

add(13, "busy", async () => checkRefusal("busy", (await busy()).error), LIMITED);
add(13, "deadline", async () => checkRefusal("deadline", (await late()).error), LIMITED);
add(13, "model-absent", async () => checkRefusal("model-absent", (await absent()).error), ABSENT);

add(
  14,
  "retry-to-success",
  async () => {
    const { name, options } = namedRequest();
    const holding = await full();
    // There is room as soon as the first attempt was refused.
    const released = (async () => {
      while (!(await outcomes("limited", name)).length);
      holding.abort();
    })();
    const at = client("limited", OWN);
    assert.ok((await create({ file: await file("short") }, { at, options })).text);
    await released;
    const ends = await outcomes("limited", name);
    assert.deepEqual([ends[0], ends.at(-1)], ["rate_limit_exceeded", "ok"]);
  },
  LIMITED,
);

add(
  14,
  "retry-503",
  async () => {
    const { error, ends } = await absent();
    const wait = Number(error.headers.get("retry-after"));
    assert.ok(wait >= 1 && wait <= 60);
    assert.deepEqual(ends, ["model_unavailable", "model_unavailable"]);
  },
  ABSENT,
);

add(14, "no-retry-400", async () => {
  assert.deepEqual((await refused("main", "header-only", OWN)).ends, ["audio_too_short"]);
});

add(
  14,
  "no-retry-504",
  async () => {
    const { error, ends } = await late();
    assert.equal(error.headers.get("x-should-retry"), "false");
    assert.deepEqual(ends, ["deadline_exceeded"]);
  },
  LIMITED,
);

add(
  15,
  "idle",
  async () => {
    const at = client();
    assert.equal((await create({}, { at })).text, WORDS);
    await sleep(IDLE_MS);
    assert.equal((await create({}, { at })).text, WORDS);
  },
  { aside: "idle" },
);
