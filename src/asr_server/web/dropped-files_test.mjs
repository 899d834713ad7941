import assert from "node:assert/strict";
import { test } from "node:test";
import { droppedFiles, looksLikeRecording } from "./dropped-files.js";

const file = (name, type = "") => ({ isFile: true, file: (resolve) => resolve(new File(["x"], name, { type })) });
const gone = { isFile: true, file: (_, reject) => reject(new Error("NotFoundError")) };
const folder = (...entries) => ({
  isDirectory: true,
  createReader() {
    const parts = [entries.slice(0, 2), entries.slice(2), []];
    return { readEntries: (resolve) => resolve(parts.shift()) };
  },
});
const dropped = async (...entries) => {
  const items = entries.map((entry) => ({ kind: "file", webkitGetAsEntry: () => entry }));
  return (await droppedFiles({ items: [{ kind: "string" }, ...items] })).map(({ name }) => name);
};

test("files are taken as they are, of folders what looks like a recording, at any depth", async () => {
  const inner = folder(file("b.mp3"), file("notes.txt"), file("c.bin", "audio/x-odd"), folder(file("D.MKV")));
  assert.deepEqual(await dropped(file("odd.xyz"), inner, gone, file("a.wav")), ["odd.xyz", "b.mp3", "c.bin", "D.MKV", "a.wav"]);
});

test("a folder that never ends is left", async () => {
  const deep = folder(file("a.wav"));
  const endless = { isDirectory: true, createReader: () => ({ readEntries: (resolve) => resolve([deep]) }) };
  assert.equal((await dropped(endless)).length, 2000);
  const chain = { isDirectory: true };
  chain.createReader = () => folder(chain).createReader();
  assert.deepEqual(await dropped(chain), []);
});

test("a browser without entries gives the files", async () => {
  const items = [{ kind: "file", getAsFile: () => new File(["x"], "a.wav") }];
  assert.equal((await droppedFiles({ items }))[0].name, "a.wav");
});

test("recordings are known by type or by name", () => {
  assert.ok(looksLikeRecording({ name: "x", type: "video/mp4" }) && looksLikeRecording({ name: "x.opus", type: "" }));
  assert.ok(!looksLikeRecording({ name: "wav", type: "" }) && !looksLikeRecording({ name: "x.png", type: "image/png" }));
});
