import assert from "node:assert/strict";
import { test } from "node:test";
import { AFTER_CLOSE, Link } from "./link.js";

const SECOND = 1000; // bytes; 500 samples
const made = (limitBytes = 100 * SECOND) => new Link({ limitBytes, bytesPerSecond: SECOND });
const hello = (more = {}) => ({ status: "connected", session_id: "live_1", window_max_s: 10, ...more });
const resumed = (received_bytes) => hello({ resumed: true, received_bytes });
const final = (utterance, start, end, more = {}) => ({ ...partial(utterance, start, end), tentative: "", is_final: true, ending: "pause", ...more });
const partial = (utterance, start, end) => ({ utterance, start, end, committed: "a", tentative: " b", is_final: false, language: "English", language_code: "en", lag_ms: 5 });
const record = (link, bytes) => link.tape.push(Uint8Array.from({ length: bytes }, (_, i) => (link.tape.end + i) % 251));
const drain = (link) => {
  const all = [];
  for (let piece; (piece = link.next(700)); ) all.push(...piece);
  return all;
};
const told = (from, until) => Array.from({ length: until - from }, (_, i) => (from + i) % 251);

test("nothing is sent before the server has greeted, then everything in order", () => {
  const link = made();
  record(link, 1500);
  assert.equal(link.next(10), null);
  assert.equal(link.hello(hello()), true);
  assert.deepEqual(drain(link), told(0, 1500));
  assert.equal(link.next(10), null);
});

test("a resumed session goes on at the byte that had arrived, wherever the cut was", () => {
  for (const arrived of [0, 1, 699, 1500, 2000]) {
    const link = made();
    link.hello(hello());
    record(link, 2000);
    drain(link);
    assert.equal(link.closed(1006).what, "resume");
    assert.deepEqual(link.query(), { session_id: "live_1", received: "0" });
    record(link, 500);
    assert.equal(link.next(10), null);
    assert.equal(link.hello(resumed(arrived)), false);
    assert.deepEqual(drain(link), told(arrived, 2500));
    assert.equal(link.lostSeconds, 0);
  }
});

test("the last final is named when the session is resumed", () => {
  const link = made();
  link.hello(hello());
  link.text(final(1, 0, 1));
  link.text(partial(2, 1, 2));
  link.closed(1006);
  assert.equal(link.query().received, "1");
});

test("a new session after a lost one hears again what no final is made of, and its times go on", () => {
  const link = made();
  link.hello(hello());
  record(link, 9000);
  drain(link);
  link.text(final(1, 1, 4));
  link.closed(1006);
  assert.deepEqual(link.closed(4004), { what: "fresh", delayMs: 250 });
  assert.deepEqual(link.query(), {});
  assert.equal(link.hello(hello({ session_id: "live_2" })), true);
  assert.deepEqual(drain(link), told(4000, 9000));
  assert.deepEqual(link.query(), { session_id: "live_2", received: "0" });
  const line = link.text(final(1, 0.5, 2));
  assert.equal(line.key, "2.1");
  assert.equal(line.start, 4.5);
  assert.equal(line.end, 6);
  assert.equal(link.lostSeconds, 0);
});

test("silence that the old session has heard is not sent to the new one, and does not count as lost", () => {
  const link = made(30 * SECOND);
  link.hello(hello());
  for (let i = 0; i < 90; i++) {
    record(link, SECOND);
    drain(link);
  }
  link.closed(4004);
  link.hello(hello({ session_id: "live_2" }));
  assert.equal(drain(link).length, 20 * SECOND); // twice the longest utterance
  assert.equal(link.lostSeconds, 0);
});

test("an outage longer than the tape loses its oldest sound, says how much, and keeps the times right", () => {
  const link = made(10 * SECOND);
  link.hello(hello());
  record(link, 2 * SECOND);
  drain(link);
  link.closed(1006);
  for (let i = 0; i < 30; i++) record(link, SECOND);
  link.hello(resumed(2 * SECOND));
  assert.equal(link.lostSeconds, 20);
  assert.equal(drain(link).length, 10 * SECOND);
  // The server counts on from its 2 s; what it hears next was said at 22 s.
  assert.equal(link.text(final(1, 3, 4)).start, 23);
});

test("a line that is too slow for the sound loses the oldest, and says so", () => {
  const link = made(10 * SECOND);
  link.hello(hello());
  for (let i = 0; i < 15; i++) record(link, SECOND);
  assert.equal(drain(link).length, 10 * SECOND);
  assert.equal(link.lostSeconds, 5);
  assert.equal(link.text(final(1, 0, 1)).start, 5);
});

test("tries come slower and slower up to five seconds, and fast again after a success", () => {
  const link = made();
  link.hello(hello());
  const delays = Array.from({ length: 8 }, () => link.closed(1006).delayMs);
  assert.deepEqual(delays, [250, 500, 1000, 2000, 4000, 5000, 5000, 5000]);
  link.hello(resumed(0));
  assert.equal(link.closed(1006).delayMs, 250);
});

test("a first connection that fails is not tried again: nothing is lost yet, and the reason matters", () => {
  for (const code of [1006, 1013, 4000, 3000]) assert.equal(made().closed(code).what, "stop");
});

test("closes that a new try cannot mend end it", () => {
  for (const [code, what] of Object.entries(AFTER_CLOSE)) {
    const link = made();
    link.hello(hello());
    assert.equal(link.closed(Number(code)).what, what);
  }
});
