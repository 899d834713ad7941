import assert from "node:assert/strict";
import { test } from "node:test";
import { AFTER_CLOSE, LiveConnection } from "./live-connection.js";

const SECOND = 1000; // bytes; 500 samples
const made = (limitBytes = 100 * SECOND) => new LiveConnection({ limitBytes, bytesPerSecond: SECOND });
const hello = (more = {}) => ({ status: "connected", session_id: "live_1", window_max_s: 10, ...more });
const resumed = (received_bytes, actions = 0) => hello({ resumed: true, received_bytes, actions });
const final = (utterance, start, end, more = {}) => ({ ...partial(utterance, start, end), tentative: "", is_final: true, ending: "pause", ...more });
const partial = (utterance, start, end) => ({ utterance, start, end, committed: "a", tentative: " b", is_final: false, language: "English", language_code: "en", lag_ms: 5 });
const record = (liveConnection, bytes) => liveConnection.buffer.push(Uint8Array.from({ length: bytes }, (_, i) => (liveConnection.buffer.end + i) % 251));
const drain = (liveConnection) => {
  const all = [];
  for (let piece; (piece = liveConnection.next(700)); ) all.push(...piece);
  return all;
};
const pattern = (from, until) => Array.from({ length: until - from }, (_, i) => (from + i) % 251);

test("nothing is sent before the server sent its first message, then everything in order", () => {
  const liveConnection = made();
  record(liveConnection, 1500);
  assert.equal(liveConnection.next(10), null);
  assert.equal(liveConnection.hello(hello()), true);
  assert.deepEqual(drain(liveConnection), pattern(0, 1500));
  assert.equal(liveConnection.next(10), null);
});

test("a resumed session goes on at the byte that had arrived, wherever the cut was", () => {
  for (const arrived of [0, 1, 699, 1500, 2000]) {
    const liveConnection = made();
    liveConnection.hello(hello());
    record(liveConnection, 2000);
    drain(liveConnection);
    assert.equal(liveConnection.closed(1006).action, "resume");
    assert.deepEqual(liveConnection.query, { session_id: "live_1", received: "0" });
    record(liveConnection, 500);
    assert.equal(liveConnection.next(10), null);
    assert.equal(liveConnection.hello(resumed(arrived)), false);
    assert.deepEqual(drain(liveConnection), pattern(arrived, 2500));
    assert.equal(liveConnection.lostSeconds, 0);
  }
});

test("the last final is named when the session is resumed", () => {
  const liveConnection = made();
  liveConnection.hello(hello());
  liveConnection.text(final(1, 0, 1));
  liveConnection.text(partial(2, 1, 2));
  liveConnection.closed(1006);
  assert.equal(liveConnection.query.received, "1");
});

test("a new session after a lost one hears again what no final is made of, and its times go on", () => {
  const liveConnection = made();
  liveConnection.hello(hello());
  record(liveConnection, 9000);
  drain(liveConnection);
  liveConnection.text(final(1, 1, 4));
  liveConnection.closed(1006);
  assert.deepEqual(liveConnection.closed(4004), { action: "fresh", delayMs: 250 });
  assert.deepEqual(liveConnection.query, { reopened: "pause" });
  assert.equal(liveConnection.hello(hello({ session_id: "live_2" })), true);
  assert.deepEqual(drain(liveConnection), pattern(4000, 9000));
  assert.deepEqual(liveConnection.query, { session_id: "live_2", received: "0" });
  const line = liveConnection.text(final(1, 0.5, 2));
  assert.equal(line.key, "2.1");
  assert.equal(line.start, 4.5);
  assert.equal(line.end, 6);
  assert.equal(liveConnection.lostSeconds, 0);
});

test("silence that the old session has heard is not sent to the new one, and does not count as lost", () => {
  const liveConnection = made(30 * SECOND);
  liveConnection.hello(hello());
  for (let i = 0; i < 90; i++) {
    record(liveConnection, SECOND);
    drain(liveConnection);
  }
  liveConnection.closed(4004);
  liveConnection.hello(hello({ session_id: "live_2" }));
  assert.equal(drain(liveConnection).length, 20 * SECOND); // twice the longest utterance
  assert.equal(liveConnection.lostSeconds, 0);
});

test("an outage longer than the buffer loses its oldest sound, says how much, and keeps the times right", () => {
  const liveConnection = made(10 * SECOND);
  liveConnection.hello(hello());
  record(liveConnection, 2 * SECOND);
  drain(liveConnection);
  liveConnection.closed(1006);
  for (let i = 0; i < 30; i++) record(liveConnection, SECOND);
  liveConnection.hello(resumed(2 * SECOND));
  assert.equal(liveConnection.lostSeconds, 20);
  assert.equal(drain(liveConnection).length, 10 * SECOND);
  // The server counts on from its 2 s; what it hears next was said at 22 s.
  assert.equal(liveConnection.text(final(1, 3, 4)).start, 23);
});

test("a line that is too slow for the sound loses the oldest, and says so", () => {
  const liveConnection = made(10 * SECOND);
  liveConnection.hello(hello());
  for (let i = 0; i < 15; i++) record(liveConnection, SECOND);
  assert.equal(drain(liveConnection).length, 10 * SECOND);
  assert.equal(liveConnection.lostSeconds, 5);
  assert.equal(liveConnection.text(final(1, 0, 1)).start, 5);
});

test("tries come slower and slower up to five seconds, and fast again after a success", () => {
  const liveConnection = made();
  liveConnection.hello(hello());
  const delays = Array.from({ length: 8 }, () => liveConnection.closed(1006).delayMs);
  assert.deepEqual(delays, [250, 500, 1000, 2000, 4000, 5000, 5000, 5000]);
  liveConnection.hello(resumed(0));
  assert.equal(liveConnection.closed(1006).delayMs, 250);
});

test("a first connection that fails is not tried again: nothing is lost yet, and the reason matters", () => {
  for (const code of [1006, 1013, 4000, 3000]) assert.equal(made().closed(code).action, "stop");
});

test("closes that a new try cannot mend end it", () => {
  for (const [code, what] of Object.entries(AFTER_CLOSE)) {
    const liveConnection = made();
    liveConnection.hello(hello());
    assert.equal(liveConnection.closed(Number(code)).action, what);
  }
});

test("a recording that goes on sends its kept sound first, and its times go on too", () => {
  const liveConnection = new LiveConnection({ limitBytes: 100 * SECOND, bytesPerSecond: SECOND, from: 4000 });
  record(liveConnection, 1500);
  assert.equal(liveConnection.unsentBytes, 1500);
  liveConnection.hello(hello());
  assert.deepEqual(drain(liveConnection), pattern(4000, 5500));
  assert.equal(liveConnection.unsentBytes, 0);
  assert.equal(liveConnection.lostSeconds, 0);
  assert.equal(liveConnection.text(final(1, 0.5, 1)).start, 4.5);
  assert.equal(liveConnection.hello(hello({ session_id: "live_2" })), true);
  assert.deepEqual(drain(liveConnection), pattern(5000, 5500));
});

test("words have the key of their line and times since recording began", () => {
  const liveConnection = new LiveConnection({ limitBytes: 100 * SECOND, bytesPerSecond: SECOND, from: 4000 });
  liveConnection.hello(hello());
  const { key } = liveConnection.text(final(1, 0, 2));
  const words = [{ word: "a", start: 0.25, end: 0.5, source: "estimated" }];
  assert.deepEqual(liveConnection.words({ utterance: 1, words }), { key, words: [{ word: "a", start: 4.25, end: 4.5, source: "estimated" }] });
});

test("where sound was lost is known, and losses near each other are one gap", () => {
  const liveConnection = made(10 * SECOND);
  liveConnection.hello(hello());
  for (let i = 0; i < 60; i++) {
    record(liveConnection, SECOND);
    if (i === 14 || i === 27 || i === 59) drain(liveConnection);
  }
  assert.deepEqual(liveConnection.gaps, [{ start: 0, end: 5 }, { start: 15, end: 18 }, { start: 28, end: 50 }]);
  assert.equal(liveConnection.lostSeconds, 30);
  const slow = made(10 * SECOND);
  slow.hello(hello());
  for (let i = 0; i < 40; i++) {
    record(slow, SECOND);
    slow.next(10);
  }
  assert.equal(slow.gaps.length, 1);
});

test("speakers of a line, of its words and of a later update have ids that a new session does not use again", () => {
  const liveConnection = new LiveConnection({ limitBytes: 100 * SECOND, bytesPerSecond: SECOND, speakers: ["A", "Maria"] });
  const speakers = [{ speaker: "A", text: "a" }, { speaker: null, text: " b" }, { speaker: "Maria", text: " c" }];
  const ids = () => {
    const { key, ...line } = liveConnection.text(final(1, 0, 1, { speakers }));
    const { words } = liveConnection.words({ utterance: 1, words: [{ word: "a", start: 0, end: 1, speaker: "A" }, { word: "b", start: 1, end: 2, speaker: null }] });
    const update = liveConnection.speakers({ utterance: 1, speakers });
    assert.deepEqual(update, { key, speakers: line.speakers });
    return [...line.speakers.map(({ speaker }) => speaker), ...words.map(({ speaker }) => speaker)];
  };
  liveConnection.hello(hello());
  assert.deepEqual(ids(), ["B", null, "Maria", "B", undefined]);
  liveConnection.hello(resumed(0));
  assert.deepEqual(ids()[0], "B");
  liveConnection.hello(hello({ session_id: "live_2" }));
  assert.deepEqual(ids(), ["C", null, "Maria", "C", undefined]);
});

test("a line of a server that tells nobody apart has no speakers", () => {
  const liveConnection = made();
  liveConnection.hello(hello());
  assert.deepEqual(liveConnection.text(final(1, 0, 1)).speakers, []);
});

const frames = (liveConnection) => {
  const all = [];
  for (let frame; (frame = liveConnection.next(700)); ) typeof frame === "string" ? all.push(JSON.parse(frame).action) : all.push(...frame);
  return all;
};

test("a server that has the session gets what it says that it lacks, also an action at the very place of the cut", () => {
  const liveConnection = made();
  liveConnection.hello(hello());
  record(liveConnection, 1000);
  for (const action of ["config", "flush"]) liveConnection.act({ action });
  frames(liveConnection);
  liveConnection.closed(1006);
  liveConnection.hello(resumed(1000, 1));
  record(liveConnection, 10);
  assert.deepEqual(frames(liveConnection), ["flush", ...pattern(1000, 1010)]);
});

test("wherever the connection is cut, the server has the sound and the actions once and in one order", () => {
  let seed = 1;
  const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
  for (let round = 0; round < 200; round++) {
    const liveConnection = made();
    const input = []; // what was recorded and done
    const server = []; // what the server has
    const bytes = (all) => all.filter((one) => typeof one === "number").length;
    liveConnection.hello(hello());
    for (let step = 0; step < 40; step++) {
      const kind = random(4);
      if (kind === 0) {
        liveConnection.act({ action: `a${step}` });
        input.push(`a${step}`);
      } else if (kind < 3) {
        const size = random(400);
        input.push(...pattern(liveConnection.buffer.end, liveConnection.buffer.end + size));
        record(liveConnection, size);
      } else {
        const sent = frames(liveConnection);
        server.push(...sent.slice(0, random(2) ? sent.length : random(sent.length + 1))); // the rest is lost
        if (server.length < input.length) {
          liveConnection.closed(1006);
          const received = bytes(server);
          liveConnection.hello(resumed(received, server.length - received));
        }
      }
      assert.deepEqual(server, input.slice(0, server.length));
    }
    server.push(...frames(liveConnection));
    assert.deepEqual(server, input);
    assert.equal(liveConnection.lostSeconds, 0);
  }
});

test("a session that its server ends is not asked for again: a new one gets the sound that has no final", () => {
  const liveConnection = made();
  liveConnection.hello(hello());
  record(liveConnection, 3000);
  drain(liveConnection);
  liveConnection.text(final(1, 0, 2, { ending: "flush" }));
  // It may have ended in the middle of a word.
  assert.equal(liveConnection.text(final(2, 2, 3, { ending: "close" })).final, false);
  liveConnection.leave();
  assert.deepEqual(liveConnection.closed(1001), { action: "resume", delayMs: 250 });
  assert.deepEqual(liveConnection.query, { reopened: "speech" });
  assert.equal(liveConnection.hello(hello({ session_id: "live_2" })), true);
  assert.deepEqual(drain(liveConnection), pattern(2000, 3000));
});
