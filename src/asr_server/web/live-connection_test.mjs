import assert from "node:assert/strict";
import { test } from "node:test";
import { AFTER_CLOSE, LiveConnection } from "./live-connection.js";

const SECOND = 1000; // bytes; 500 samples
const made = (limitBytes = 100 * SECOND) => new LiveConnection({ limitBytes, bytesPerSecond: SECOND });
const hello = (more = {}) => ({ status: "connected", session_id: "live_1", window_max_s: 10, ...more });
const resumed = (received_bytes) => hello({ resumed: true, received_bytes });
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
  assert.equal(liveConnection.hello(hello()).fresh, true);
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
    assert.deepEqual(liveConnection.request().query, { session_id: "live_1", received: "0" });
    record(liveConnection, 500);
    assert.equal(liveConnection.next(10), null);
    assert.equal(liveConnection.hello(resumed(arrived)).fresh, false);
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
  assert.equal(liveConnection.request().query.received, "1");
});

test("a new session after a lost one hears again what no final is made of, and its times go on", () => {
  const liveConnection = made();
  liveConnection.hello(hello());
  record(liveConnection, 9000);
  drain(liveConnection);
  liveConnection.text(final(1, 1, 4));
  liveConnection.closed(1006);
  assert.deepEqual(liveConnection.closed(4004), { action: "fresh", delayMs: 250 });
  assert.deepEqual(liveConnection.request().query, { handover: "true" });
  assert.equal(liveConnection.hello(hello({ session_id: "live_2" })).fresh, true);
  assert.deepEqual(drain(liveConnection), pattern(4000, 9000));
  assert.deepEqual(liveConnection.request().query, { session_id: "live_2", received: "0" });
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
  assert.equal(liveConnection.hello(hello({ session_id: "live_2" })).fresh, true);
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

const at = (received_bytes, actions = 0) => ({ continuation: { state: `s${received_bytes}`, received_bytes, actions } });
const continued = (received_bytes, actions = 0) => hello({ resumed: true, continued: true, received_bytes, actions, ...at(received_bytes, actions) });
const opened = (liveConnection, message) => {
  const answer = liveConnection.hello(message);
  liveConnection.note(message);
  return answer;
};
const frames = (liveConnection) => {
  const all = [];
  for (let frame; (frame = liveConnection.next(700)); ) typeof frame === "string" ? all.push(JSON.parse(frame).action) : all.push(...frame);
  return all;
};

test("another server gets what lies behind the newest continuation: sound and actions, each in its place", () => {
  const liveConnection = made();
  opened(liveConnection, hello(at(0)));
  record(liveConnection, 1000);
  liveConnection.act({ action: "config" });
  record(liveConnection, 2000);
  liveConnection.act({ action: "flush" });
  record(liveConnection, 500);
  frames(liveConnection);
  liveConnection.text(final(1, 0, 2));
  liveConnection.note(at(1500, 1));
  liveConnection.text(partial(2, 2, 3));
  assert.equal(liveConnection.closed(1006).action, "resume");
  assert.deepEqual(liveConnection.request().query, { session_id: "live_1", received: "1", handover: "true" });
  assert.deepEqual(JSON.parse(liveConnection.request().frame), { action: "continue", state: "s1500", utterance: 2, committed: "a", end: 3 });
  assert.deepEqual(opened(liveConnection, continued(1500, 1)), { fresh: false, exact: true });
  assert.deepEqual(frames(liveConnection), [...pattern(1500, 3000), "flush", ...pattern(3000, 3500)]);
  assert.equal(liveConnection.lostSeconds, 0);
  assert.equal(liveConnection.text(final(2, 2, 3)).key, "1.2");
});

test("a server that has the session gets what it says that it lacks, also an action at the very place of the cut", () => {
  const liveConnection = made();
  opened(liveConnection, hello(at(0)));
  record(liveConnection, 1000);
  for (const action of ["config", "flush"]) liveConnection.act({ action });
  frames(liveConnection);
  liveConnection.closed(1006);
  opened(liveConnection, hello({ resumed: true, received_bytes: 1000, actions: 1 }));
  record(liveConnection, 10);
  assert.deepEqual(frames(liveConnection), ["flush", ...pattern(1000, 1010)]);
});

test("whatever is cut, and wherever another server goes on, each has the sound and the actions in one order", () => {
  let seed = 1;
  const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
  for (let round = 0; round < 200; round++) {
    const liveConnection = made();
    const input = []; // what was recorded and done
    let server = []; // what the present server has
    let from = 0; // what lies before is in the newest continuation
    const bytes = (all) => all.filter((one) => typeof one === "number").length;
    opened(liveConnection, hello(at(0)));
    for (let step = 0; step < 40; step++) {
      const kind = random(6);
      if (kind === 0) {
        liveConnection.act({ action: `a${step}` });
        input.push(`a${step}`);
      } else if (kind < 3) {
        const size = random(400);
        input.push(...pattern(liveConnection.buffer.end, liveConnection.buffer.end + size));
        record(liveConnection, size);
      } else if (kind === 3) {
        const sent = frames(liveConnection);
        server.push(...sent.slice(0, random(2) ? sent.length : random(sent.length + 1))); // the rest is lost
        if (server.length < input.length) {
          liveConnection.closed(1006);
          const received = bytes(server);
          opened(liveConnection, hello({ resumed: true, received_bytes: received, actions: server.length - received }));
        }
      } else if (kind === 4) {
        from = Math.max(from, random(server.length + 1));
        const had = server.slice(0, from);
        liveConnection.note(at(bytes(had), from - bytes(had)));
      } else {
        liveConnection.closed(1006);
        server = server.slice(0, from);
        opened(liveConnection, continued(bytes(server), from - bytes(server)));
      }
      assert.deepEqual(server, input.slice(0, server.length));
    }
    server.push(...frames(liveConnection));
    assert.deepEqual(server, input);
    assert.equal(liveConnection.lostSeconds, 0);
  }
});

test("what another server would lack is not passed over: the session stays, and a loss is reported", () => {
  const liveConnection = made(10 * SECOND);
  opened(liveConnection, hello(at(0)));
  assert.equal(liveConnection.movable, true);
  for (let i = 0; i < 15; i++) {
    record(liveConnection, SECOND);
    drain(liveConnection);
  }
  assert.equal(liveConnection.movable, false);
  liveConnection.note(at(6 * SECOND));
  assert.equal(liveConnection.movable, true);
  for (let i = 0; i < 3; i++) {
    record(liveConnection, SECOND);
    drain(liveConnection);
  }
  liveConnection.closed(1006);
  opened(liveConnection, continued(6 * SECOND));
  assert.equal(liveConnection.lostSeconds, 2);
  assert.equal(liveConnection.text(final(1, 7, 8)).start, 9);
});

test("a state that a server does not read leads to a new session, with the sound that has no final", () => {
  const liveConnection = made();
  opened(liveConnection, hello(at(0)));
  record(liveConnection, 3000);
  drain(liveConnection);
  liveConnection.note(at(2000));
  liveConnection.closed(1006);
  assert.equal(liveConnection.closed(4000).action, "fresh");
  assert.equal(opened(liveConnection, hello({ session_id: "live_2", ...at(0) })).fresh, true);
  assert.deepEqual(drain(liveConnection), pattern(2000, 3000));
});

test("the words of an utterance that are too many are not stated, nor those of one that has its final", () => {
  const liveConnection = made();
  opened(liveConnection, hello(at(0)));
  liveConnection.text({ ...partial(1, 0, 1), committed: "a".repeat(2001) });
  const frame = () => JSON.parse(liveConnection.request().frame);
  assert.deepEqual(frame(), { action: "continue", state: "s0" });
  const speakers = [{ speaker: "A", text: "a" }];
  liveConnection.text(partial(1, 0, 1));
  liveConnection.speakers({ utterance: 1, speakers });
  assert.deepEqual(frame().speakers, speakers);
  liveConnection.text(final(1, 0, 1));
  assert.deepEqual(frame(), { action: "continue", state: "s0" });
});
