import assert from "node:assert/strict";
import { test } from "node:test";
import { SpeechPlayer } from "./speech-player.js";

const settled = () => new Promise((resolve) => setTimeout(resolve));
const AUDIO = Buffer.from(new Int16Array(240).buffer).toString("base64");

/** Plays nothing: a test ends the sounds. */
class Output {
  playing = [];
  most = 0;
  async open() {}
  play(samples, ended) {
    this.playing.push(ended);
    this.most = Math.max(this.most, this.playing.length);
  }
  pause() {}
  resume() {}
  stop() {
    this.playing = [];
  }
  /** The first sound ends. */
  async end() {
    this.playing.shift()();
    await settled();
  }
}

/** A server that divides at full stops. `requests` are the bodies; `seconds` is the length of a sentence. */
function scripted({ seconds = 5, failAt = Infinity } = {}) {
  const requests = [];
  const server = { requests, given: 0, left: 0, failAt };
  server.ask = async function* ask(body, signal) {
    requests.push({ ...body, signal });
    try {
      for (const match of body.input.matchAll(/[^.]*[^.\s][^.]*\.?/g)) {
        await settled();
        if (server.given++ >= server.failAt) throw new Error("broken");
        const blanks = match[0].length - match[0].trimStart().length;
        const start = [...body.input.slice(0, match.index + blanks)].length;
        yield { text: match[0].trim(), start, end: start + [...match[0].trim()].length, duration: seconds, audio: AUDIO };
      }
    } finally {
      server.left++;
    }
  };
  return server;
}

function player(server) {
  const output = new Output();
  const states = [];
  const made = new SpeechPlayer(server.ask, output, () => {
    if (states.at(-1) !== made.state) states.push(made.state);
  });
  return { made, output, states };
}

async function readToItsEnd({ made, output }, text) {
  const read = [];
  await settled();
  for (let turn = 0; made.state !== "idle" && turn < 10_000; turn++) {
    await settled();
    if (!output.playing.length) continue;
    read.push(text.slice(made.sentence.start, made.sentence.end));
    await output.end();
  }
  assert.equal(made.state, "idle");
  return read;
}

test("every sentence is read once, in order, however many requests it takes", async () => {
  const all = Array.from({ length: 400 }, (_, i) => `Sentence 😀 number ${i} is here.`);
  const text = all.join(" \n");
  const server = scripted();
  const { made, output, states } = player(server);
  made.start(text, 0, { voice: "alloy" });
  assert.deepEqual(await readToItsEnd({ made, output }, text), all);
  assert.ok(server.requests.length >= 5 && server.requests.every(({ input }) => input.length <= 2000));
  assert.ok(server.requests.every(({ voice }) => voice === "alloy"));
  assert.deepEqual([states[0], states[1], states.at(-1)], ["waiting", "reading", "idle"]);
});

test("a bounded part of a long text is held, and the browser has two sentences", async () => {
  const server = scripted();
  const { made, output } = player(server);
  made.start("This is a sentence of fifty characters, no longer. ".repeat(400), 0, {});
  for (let i = 0; i < 300; i++) await settled();
  // 30 s are enough to wait with the next part; the first has about forty sentences.
  assert.equal(server.requests.length, 1);
  assert.equal(output.most, 2);
  for (let i = 0; i < 36; i++) await output.end();
  for (let i = 0; i < 100; i++) await settled();
  assert.equal(server.requests.length, 2);
});

test("what has no word is passed over", async () => {
  const server = scripted();
  const parts = player(server);
  const text = `One. ${"\n*** ".repeat(1000)}\nTwo.`;
  parts.made.start(text, 0, {});
  const read = await readToItsEnd(parts, text);
  assert.deepEqual([read[0], read.at(-1).slice(-4)], ["One.", "Two."]);
  assert.ok(server.requests.every(({ input }) => /[a-z]/.test(input)));
});

test("reading begins at the sentence that was chosen", async () => {
  const parts = player(scripted());
  const text = "One. Two. Three.";
  parts.made.start(text, 5, {});
  assert.deepEqual(await readToItsEnd(parts, text), ["Two.", "Three."]);
});

test("stop ends the request and the sound at once", async () => {
  const server = scripted();
  const { made, output } = player(server);
  made.start("One. Two. Three.", 0, {});
  await settled();
  await settled();
  made.stop();
  assert.ok(server.requests[0].signal.aborted);
  assert.deepEqual([made.state, made.sentence, output.playing.length], ["idle", null, 0]);
  for (let i = 0; i < 10; i++) await settled();
  assert.deepEqual([output.playing.length, server.left], [0, 1]);
});

test("a new text replaces the one that is read", async () => {
  const server = scripted();
  const parts = player(server);
  parts.made.start("Old. Older. Oldest.", 0, {});
  await settled();
  await settled();
  parts.made.start("New. Newer.", 0, {});
  assert.ok(server.requests[0].signal.aborted);
  assert.deepEqual(await readToItsEnd(parts, "New. Newer."), ["New.", "Newer."]);
});

test("after a failure what is held is read, and a new try goes on behind it", async () => {
  const server = scripted({ failAt: 2 });
  const { made, output, states } = player(server);
  made.start("One. Two. Three. Four.", 0, {});
  for (let i = 0; i < 10; i++) await settled();
  assert.deepEqual([made.state, made.problem.message], ["reading", "broken"]);
  await output.end();
  await output.end();
  assert.equal(made.state, "failed");
  server.failAt = Infinity;
  made.retry();
  assert.equal(made.problem, null);
  assert.deepEqual(await readToItsEnd({ made, output }, "One. Two. Three. Four."), ["Three.", "Four."]);
  assert.equal(server.requests.at(-1).input.trim(), "Three. Four.");
  assert.equal(states.at(-1), "idle");
});

test("a pause lasts until it is ended, whatever arrives", async () => {
  const { made } = player(scripted());
  made.start("One. Two.", 0, {});
  made.pause();
  for (let i = 0; i < 10; i++) await settled();
  assert.equal(made.state, "paused");
  made.resume();
  assert.equal(made.state, "reading");
});
