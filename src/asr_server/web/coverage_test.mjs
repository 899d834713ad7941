// What the reader says of the parts of a recording.

import assert from "node:assert/strict";
import { test } from "node:test";
import { outcomes, unheard } from "./coverage.js";

const part = (kind, start, end, reason) => ({ kind, start, end, reason });

test("seconds of a kind add up, those of what is unheard for each reason", () => {
  const parts = [part("unheard", 0, 2, "detector"), part("words", 2, 10), part("silence", 10, 11), part("words", 11, 12), part("unheard", 12, 15, "failed")];
  assert.deepEqual(outcomes(parts).map(({ kind, reason, seconds }) => [kind, reason, seconds]), [
    ["words", undefined, 9],
    ["silence", undefined, 1],
    ["unheard", "detector", 2],
    ["unheard", "failed", 3],
  ]);
});

test("places near each other are listed as one, and their pause does not count", () => {
  const [found] = outcomes([part("unheard", 0, 2, "loop"), part("unheard", 4, 5, "loop"), part("unheard", 60, 61, "loop")]);
  assert.deepEqual(found, { kind: "unheard", reason: "loop", seconds: 4, places: [{ start: 0, end: 5 }, { start: 60, end: 61 }] });
});

test("what the connection lost of a live recording was not heard", () => {
  assert.deepEqual(unheard({ gaps: [{ start: 1, end: 2 }] }), [part("unheard", 1, 2, "connection")]);
  assert.deepEqual(unheard({ coverage: [part("words", 0, 1), part("unheard", 1, 2, "budget")] }), [part("unheard", 1, 2, "budget")]);
});
