// Callers that leave in the middle, and time limits of the client: items 11 and 15.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { add, checkFreed, client, create, failure, file, idle, namedRequest, openai, outcomes } from "./world.mjs";

const BEGUN_WITHIN_MS = 60_000;

add(11, "close", async () => {
  const stream = await create({ file: await file("minute"), stream: true }, { at: client("slow") });
  let left = 0;
  for await (const _ of stream) {
    assert.equal(await idle("slow"), false);
    left = performance.now();
    stream.controller.abort();
  }
  await checkFreed("slow", left);
});

add(11, "cancel-plain", async () => {
  const controller = new AbortController();
  const options = { signal: controller.signal };
  const work = failure(async () => create({ file: await file("minute") }, { at: client("slow"), options }));
  const giveUp = performance.now() + BEGUN_WITHIN_MS;
  while (await idle("slow")) {
    assert.ok(performance.now() < giveUp, "the work was not begun");
    await sleep(20);
  }
  const left = performance.now();
  controller.abort();
  assert.ok((await work) instanceof openai.APIUserAbortError);
  await checkFreed("slow", left);
});

add(15, "timeout", async () => {
  const { name, options } = namedRequest();
  const at = client("slow", { timeout: 500, maxRetries: 1 });
  const error = await failure(async () => create({ file: await file("minute") }, { at, options }));
  assert.ok(error instanceof openai.APIConnectionTimeoutError, `${error}`);
  await checkFreed("slow", performance.now());
  assert.deepEqual(await outcomes("slow", name), ["request_cancelled", "request_cancelled"]);
});
