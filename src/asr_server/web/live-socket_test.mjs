import assert from "node:assert/strict";
import { test } from "node:test";

const made = []; // every socket, in order

class Socket {
  static CONNECTING = 0;
  static OPEN = 1;
  readyState = 0;
  bufferedAmount = 0;
  sent = [];
  constructor(url) {
    this.url = new URL(url);
    made.push(this);
  }
  send(data) {
    this.sent.push(data);
  }
  close(code) {
    this.readyState = 3;
    this.closed = code;
  }
  open() {
    if (this.readyState) return;
    this.readyState = 1;
    this.onopen();
  }
  hello(more) {
    this.open();
    this.tell({ status: "connected", session_id: "live_1", window_max_s: 10, ...more });
  }
  tell(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }
  cut(code) {
    this.readyState = 3;
    this.onclose({ code });
  }
}

let later = () => {}; // what waits for its time
Object.assign(globalThis, {
  setTimeout: (what) => ((later = what), 1),
  setInterval: () => 1,
  WebSocket: Socket,
  sessionStorage: { getItem: () => null },
  addEventListener() {},
  removeEventListener() {},
});
const { LiveConnection } = await import("./live-connection.js");
const { LiveSocket } = await import("./live-socket.js");

function opened(query = {}) {
  const liveConnection = new LiveConnection({ limitBytes: 10_000, bytesPerSecond: 1000 });
  const heard = [];
  const shown = []; // in short
  const told = (what) => void heard.push(what);
  const on = {
    state: (name) => shown.push(name),
    line: ({ key }) => shown.push(`line ${key}`),
    words: (what) => (told(what), shown.push(`words ${what.key}`)),
    speakers: told,
    unlabelled: () => told("unlabelled"),
    fresh() {},
    error() {},
  };
  const socket = new LiveSocket(liveConnection, query, on);
  socket.open();
  const next = () => {
    later();
    return made.at(-1);
  };
  return { socket, liveConnection, next, heard, shown, first: made.at(-1) };
}

const actions = (socket) => socket.sent.filter((data) => typeof data === "string").map((data) => JSON.parse(data));
const CHANGED = { action: "config", language: "de", hotwords: "Küche" };

test("what was changed while it ran holds for a new session too, before any sound", () => {
  const { socket, liveConnection, first, next } = opened({ language: "en" });
  first.hello();
  socket.configure({ language: "fr" });
  socket.configure({ language: "de" });
  socket.configure({ hotwords: "Küche" });
  assert.deepEqual(actions(first).at(-1), CHANGED);
  first.cut(4004);
  liveConnection.buffer.push(new Uint8Array(100));
  const second = next();
  second.hello();
  assert.deepEqual(JSON.parse(second.sent[0]), CHANGED);
  assert.equal(second.sent[1].length, 100);
});

test("what was changed on a line that was dead already is said again when the session goes on", () => {
  const { socket, first, next } = opened();
  first.hello();
  socket.configure({ language: "de" });
  first.cut(1006);
  const second = next();
  second.hello({ resumed: true, received_bytes: 0 });
  assert.deepEqual(actions(second), [{ action: "config", language: "de" }]);
});

test("where nothing was changed nothing is said", () => {
  const { first } = opened({ language: "en" });
  assert.equal(first.url.searchParams.get("language"), "en");
  first.hello();
  assert.deepEqual(first.sent, []);
});

test("whoever waits for the last line hears of it, however often it was asked for", async () => {
  const { socket, first } = opened();
  first.hello();
  const ends = [socket.flush(), socket.flush()];
  const line = { text: "", is_final: true, committed: "", tentative: "", utterance: 1, start: 0, end: 1, ending: "flush" };
  for (const _ of actions(first)) first.tell(line);
  await Promise.all(ends);
});

test("the words of a line are told with its key", () => {
  const { first, heard } = opened();
  first.hello();
  first.tell({ utterance: 1, words: [{ word: "on", start: 0, end: 1 }] });
  assert.deepEqual(heard, [{ key: "1.1", words: [{ word: "on", start: 0, end: 1 }] }]);
});

test("who spoke is told with the key of the line, and that nobody can say it any more", () => {
  const { first, heard } = opened({ speakers: "true" });
  assert.equal(first.url.searchParams.get("speakers"), "true");
  first.hello({ speakers: true });
  const speakers = [{ speaker: "A", text: "on" }];
  first.tell({ type: "speaker_update", utterance: 1, speakers, speakers_settled: true });
  first.tell({ status: "speakers_unavailable", message: "gone" });
  assert.deepEqual(heard, [{ key: "1.1", speakers }, "unlabelled"]);
});

test("a session that has lost its speakers says so when it goes on", () => {
  const { first, heard, next } = opened({ speakers: "true" });
  first.hello({ speakers: true });
  first.cut(1006);
  next().hello({ resumed: true, received_bytes: 0, speakers: false });
  assert.deepEqual(heard, ["unlabelled"]);
});

const at = (received_bytes, actions = 0) => ({ continuation: { state: `s${received_bytes}`, received_bytes, actions } });
const text = (utterance, more) => ({ text: "a b", is_final: false, committed: "a", tentative: " b", utterance, start: 0, end: 1, ...more });
const final = (utterance, more) => text(utterance, { is_final: true, committed: "a b", tentative: "", ending: "pause", ...more });
const sound = (socket) => socket.sent.filter((data) => typeof data !== "string").flatMap((data) => [...data]);

/** A session that its server, `first`, wants to hand over; `second` is the socket that was opened for it. */
function asked(...before) {
  const session = opened();
  session.first.hello(at(0));
  session.socket.push(Uint8Array.from([1, 2, 3, 4, 5, 6]));
  for (const message of before) session.first.tell(message);
  session.shown.length = 0;
  session.first.tell({ status: "reconnect", within_s: 5, ...at(4) });
  return { ...session, second: made.at(-1) };
}

test("a session is handed over while its server still serves it: nobody sees it", () => {
  const { socket, shown, first, second } = asked(final(1), text(2));
  assert.notEqual(first, second);
  assert.deepEqual(["session_id", "received", "handover"].map((name) => second.url.searchParams.get(name)), ["live_1", "1", "true"]);
  second.open();
  assert.deepEqual(actions(second), [{ action: "continue", state: "s4", utterance: 2, committed: "a", end: 1 }]);
  socket.push(Uint8Array.from([7, 8]));
  assert.deepEqual(sound(first), [1, 2, 3, 4, 5, 6, 7, 8]);
  // What the last server still says is the next one's to say, but for what belongs to a final that is here.
  first.tell(final(2));
  first.tell({ utterance: 1, words: [{ word: "a", start: 0, end: 1 }] });
  assert.deepEqual(shown, []);
  second.hello({ resumed: true, continued: true, received_bytes: 4, actions: 0, ...at(4) });
  assert.equal(first.closed, 4010);
  assert.deepEqual(sound(second), [5, 6, 7, 8]);
  first.cut(4010);
  second.tell(final(2));
  assert.deepEqual(shown, ["words 1.1", "live", "line 1.2"]);
});

test("while no other server takes the session, the last one's words are shown, and the next try begins from them", () => {
  const { shown, first, second, next } = asked();
  second.open();
  first.tell(final(1));
  first.tell({ status: "continuation", ...at(6) });
  assert.deepEqual(shown, []);
  second.cut(1001);
  assert.deepEqual(shown, ["line 1.1"]);
  const third = next();
  third.open();
  assert.deepEqual(actions(third), [{ action: "continue", state: "s6" }]);
  assert.equal(third.url.searchParams.get("received"), "1");
  third.hello({ resumed: true, continued: true, received_bytes: 6, actions: 0, ...at(6) });
  assert.deepEqual([first.closed, sound(third).length], [4010, 0]);
});

test("a server that goes before the next one has answered is not missed, if that one does", () => {
  const { shown, first, second } = asked();
  second.open();
  first.cut(1001);
  second.hello({ resumed: true, continued: true, received_bytes: 4, actions: 0, ...at(4) });
  assert.deepEqual(shown, ["live"]);
  assert.deepEqual(sound(second), [5, 6]);
});

test("and if it does not, the session is resumed as after any cut", () => {
  const { shown, first, second, next } = asked();
  first.cut(1001);
  second.cut(1006);
  assert.deepEqual(shown, ["waiting"]);
  const third = next();
  assert.notEqual(third, second);
  third.open();
  assert.deepEqual(actions(third)[0], { action: "continue", state: "s4" });
});

test("a flush and a change that the last server had not finished reach the next one once, in their places", async () => {
  const { socket, first, second } = asked();
  socket.configure({ language: "de" });
  const answered = socket.flush();
  socket.push(Uint8Array.from([7]));
  second.hello({ resumed: true, continued: true, received_bytes: 4, actions: 0, ...at(4) });
  const kinds = second.sent.map((data) => (typeof data === "string" ? JSON.parse(data).action : data.length));
  assert.deepEqual(kinds, ["continue", 2, "config", "flush", 1]);
  second.tell(final(1, { ending: "flush" }));
  await answered;
  assert.equal(first.closed, 4010);
});

test("a page that stops while its session moves leaves none behind", () => {
  const { socket, first, second } = asked();
  socket.close();
  assert.deepEqual([first.closed, second.closed], [1000, 4010]);
});
