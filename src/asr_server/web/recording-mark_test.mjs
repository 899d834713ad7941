import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.sessionStorage = globalThis.localStorage = { getItem: () => null };
const { marked } = await import("./recording-mark.js");

test("the title has one sign, with the newest time, and none afterwards", () => {
  let title = "Speech to text";
  for (const seconds of [0, 59.9, 61, 3600, 360_000]) title = marked(title, "live", seconds);
  assert.equal(title, "● 100:00:00 · Speech to text");
  title = marked(title, "paused", 3605);
  assert.equal(title, "‖ 1:00:05 · Speech to text");
  assert.equal(marked(title, "", 0), "Speech to text");
});

test("a title that another part of the page sets meanwhile is marked as well", () => {
  assert.equal(marked("Interview 1:23 · Speech to text", "live", 5), "● 0:05 · Interview 1:23 · Speech to text");
});
