// Server-sent events as the client gives them out, and as they are on the line: items 8, 9, 10 and 12.

import assert from "node:assert/strict";

import { add, client, collect, create, file, MODEL, openai, WORDS } from "./world.mjs";

async function events(name = "spans", fields = {}, server = "main") {
  const stream = await create({ file: await file(name), stream: true, ...fields }, { at: client(server) });
  return await collect(stream);
}

function said(all) {
  return all.slice(0, -1).map(({ delta }) => delta).join("");
}

add(8, "stream-events", async () => {
  const types = (await events()).map(({ type }) => type);
  assert.equal(types.pop(), "transcript.text.done");
  assert.ok(types.length > 6);
  assert.deepEqual([...new Set(types)], ["transcript.text.delta"]);
});

add(8, "stream-text", async () => {
  const all = await events();
  const plain = (await create({ file: await file("spans") })).text;
  assert.ok(plain.includes(WORDS));
  assert.deepEqual([said(all), all.at(-1).text], [plain, plain]);
});

add(8, "stream-early", async () => {
  const began = performance.now();
  const times = [];
  for await (const _ of await create({ stream: true }, { at: client("slow") })) times.push(performance.now() - began);
  assert.ok(times[0] < 0.6 * times.at(-1), `first after ${times[0]} ms, all after ${times.at(-1)} ms`);
});

add(8, "stream-usage", async () => {
  const { usage } = (await events()).at(-1);
  assert.equal(usage.type, "tokens");
  assert.equal(usage.total_tokens, usage.input_tokens + usage.output_tokens);
  assert.ok(usage.total_tokens > 50);
});

add(8, "stream-logprobs", async () => {
  const all = await events("sample", { include: ["logprobs"] });
  const { logprobs } = all.at(-1);
  assert.equal(Buffer.from(logprobs.flatMap(({ bytes }) => bytes)).toString().trim(), WORDS);
  assert.ok(all.slice(0, -1).every((event) => event.logprobs === undefined));
  assert.equal((await events("sample")).at(-1).logprobs, undefined);
});

add(8, "stream-silence", async () => {
  const all = await events("silence");
  assert.deepEqual(all.map(({ type, text }) => [type, text]), [["transcript.text.done", ""]]);
});

async function raw(server) {
  const body = { file: await file(), model: MODEL, stream: true };
  return await client(server).audio.transcriptions.create(body).asResponse();
}

add(9, "raw-headers", async () => {
  const answer = await raw("main");
  await answer.text();
  const seen = ["content-type", "cache-control", "x-accel-buffering", "content-encoding"];
  const wanted = ["text/event-stream; charset=utf-8", "no-cache", "no", null];
  assert.deepEqual(seen.map((name) => answer.headers.get(name)), wanted);
});

add(9, "raw-frames", async () => {
  const frames = (await (await raw("main")).text()).split("\n\n");
  assert.equal(frames.pop(), "");
  assert.ok(frames.every((frame) => /^data: [^\r\n]+$/.test(frame)));
  assert.equal(frames.pop(), "data: [DONE]");
  const types = frames.map((frame) => JSON.parse(frame.slice(6)).type);
  assert.equal(types.filter((type) => type === "transcript.text.done").length, 1);
});

add(9, "raw-pings", async () => {
  assert.ok((await (await raw("slow")).text()).includes("\n\n: ping\n\n"));
  assert.equal((await events("sample", {}, "slow")).at(-1).text, WORDS);
});

add(
  10,
  "stream-cut",
  async () => {
    let deltas = 0;
    try {
      for await (const event of await create({ file: await file("held"), stream: true }, { at: client("limited") })) {
        assert.equal(event.type, "transcript.text.delta");
        deltas += 1;
      }
    } catch (error) {
      assert.ok(deltas > 0);
      assert.ok(error instanceof openai.APIError && !(error instanceof openai.APIConnectionError), `${error}`);
      assert.deepEqual([error.code, error.type, error.param], ["deadline_exceeded", "server_error", null]);
      return;
    }
    throw new Error("the stream ended as if it were whole");
  },
  { aside: "limited" },
);

add(12, "raw-response", async () => {
  const body = { file: await file(), model: MODEL, stream: true };
  const { data, response, request_id } = await client().audio.transcriptions.create(body).withResponse();
  const all = await collect(data);
  assert.deepEqual([said(all), all.at(-1).text], [WORDS, WORDS]);
  assert.equal(response.headers.get("x-request-id"), request_id);
});
