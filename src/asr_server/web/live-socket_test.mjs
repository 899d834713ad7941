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
  second.hello({ resumed: true, received_bytes: 0, actions: 0 });
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
  next().hello({ resumed: true, received_bytes: 0, actions: 0, speakers: false });
  assert.deepEqual(heard, ["unlabelled"]);
});

const final = { text: "a b", is_final: true, committed: "a b", tentative: "", utterance: 1, start: 0, end: 0.004, ending: "flush" };
const sound = (socket) => socket.sent.filter((data) => typeof data !== "string").flatMap((data) => [...data]);

test("a server that shuts down says the last words of its session, and the next one gets the rest in a new session", () => {
  const { socket, shown, first, next } = opened();
  first.hello();
  socket.push(Uint8Array.from([1, 2, 3, 4, 5, 6]));
  first.tell(final);
  first.tell({ status: "reconnect" });
  first.cut(1001);
  socket.push(Uint8Array.from([7, 8]));
  const second = next();
  assert.deepEqual(["session_id", "reopened"].map((name) => second.url.searchParams.get(name)), [null, "speech"]);
  second.hello({ session_id: "live_2" });
  assert.deepEqual(sound(second), [5, 6, 7, 8]);
  second.tell({ ...final, end: 0.002 });
  assert.deepEqual(shown, ["connecting", "live", "line 1.1", "waiting", "connecting", "live", "line 2.1"]);
});

test("a flush that the last server had not finished reaches the next one once, behind all sound", async () => {
  const { socket, first, next } = opened();
  first.hello();
  socket.push(Uint8Array.from([1, 2]));
  const answered = socket.flush();
  first.tell({ status: "reconnect" });
  first.cut(1001);
  const second = next();
  second.hello({ session_id: "live_2" });
  const kinds = second.sent.map((data) => (typeof data === "string" ? JSON.parse(data).action : data.length));
  assert.deepEqual(kinds, [2, "flush"]);
  second.tell({ ...final, ending: "flush" });
  await answered;
});
