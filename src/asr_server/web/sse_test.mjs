import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser } from "./sse.js";

const EVENTS = [{ text: "a\nb", n: 1 }, { text: "日本", n: 2 }, { done: true }];
const WIRE = `: ping\n\n${EVENTS.map((event) => `data: ${JSON.stringify(event)}\n\n`).join(": ping\n\n")}data: [DONE]\n\n`;

test("however the text is cut, the events are the same", () => {
  for (let size = 1; size <= WIRE.length; size++) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < WIRE.length; at += size) found.push(...parser.push(WIRE.slice(at, at + size)));
    assert.deepEqual(found, EVENTS);
  }
});

test("an event without its blank line is not there yet", () => {
  const parser = new EventParser();
  assert.deepEqual(parser.push('data: {"n": 1}\n'), []);
  assert.deepEqual(parser.push("\n"), [{ n: 1 }]);
});

test("line ends of any kind part events", () => {
  assert.deepEqual(new EventParser().push('data: {"n": 1}\r\n\r\ndata: {"n": 2}\n\n'), [{ n: 1 }, { n: 2 }]);
});
