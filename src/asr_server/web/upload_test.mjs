import assert from "node:assert/strict";
import { test } from "node:test";

class Request {
  upload = {};
  open() {}
  setRequestHeader() {}
  send() {
    Request.last = this;
  }
}

let health = { status: "ok" };
Object.assign(globalThis, {
  XMLHttpRequest: Request,
  sessionStorage: { getItem: () => null },
  fetch: async () => new Response(JSON.stringify(health)),
});
const { post } = await import("./upload.js");

const GONE = { slice: () => ({ arrayBuffer: () => Promise.reject(new Error("NotReadableError")) }) };
const on = { sent() {}, text() {} };

/** The code that a line which breaks is told with; `sent`: whether the file was with the server already. */
async function told(file, sent) {
  // A form would not take what is no file.
  const real = globalThis.FormData;
  globalThis.FormData = class extends Map {
    append() {}
  };
  const { done } = post("x", file, {}, on);
  globalThis.FormData = real;
  if (sent) Request.last.upload.onload();
  Request.last.onerror();
  return done.then(
    () => "none",
    (problem) => problem.code,
  );
}

test("a line that breaks has the reason that can be found out", async () => {
  const file = new Blob(["x"]);
  assert.equal(await told(file, false), "upload_cut");
  assert.equal(await told(file, true), "cut");
  assert.equal(await told(GONE, false), "file_gone");
  health = { status: "draining" };
  assert.equal(await told(file, false), "shutting_down");
});
