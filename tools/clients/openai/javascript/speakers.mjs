// Who said what: item 4.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { add, collect, create, file, recording, WORDS } from "./world.mjs";

const FORMAT = { response_format: "diarized_json" };

add(4, "diarized", async () => {
  const { task, text, segments } = await create({ file: await file("spans"), ...FORMAT });
  assert.equal(task, "transcribe");
  assert.equal(text, (await create({ file: await file("spans") })).text);
  assert.equal(segments.map((segment) => segment.text).join(" "), text);
  assert.equal(segments[0].speaker, "A");
  for (const { id, type, start, end } of segments) {
    assert.deepEqual([typeof id, type], ["string", "transcript.text.segment"]);
    assert.ok(end > start && start >= 0);
  }
});

add(4, "diarized-stream", async () => {
  const events = await collect(await create({ file: await file("spans"), stream: true, ...FORMAT }));
  const kinds = events.map(({ type }) => type.split(".").at(-1));
  const said = events.slice(0, kinds.lastIndexOf("delta") + 1);
  assert.equal(said.map(({ delta }) => delta).join(""), events.at(-1).text);
  const segments = kinds.slice(said.length, -1);
  assert.ok(segments.length > 0 && segments.every((kind) => kind === "segment"));
  assert.equal(events[said.length].speaker, "A");
  assert.equal(kinds.at(-1), "done");
});

add(4, "known-speaker", async () => {
  const clip = readFileSync(recording("voice"));
  assert.ok(clip.length > 2 ** 20);
  const known_speaker_references = [`data:audio/wav;base64,${clip.toString("base64")}`];
  const { text, segments } = await create({ known_speaker_names: ["agent"], known_speaker_references, ...FORMAT });
  assert.equal(text, WORDS);
  assert.deepEqual([...new Set(segments.map(({ speaker }) => speaker))], ["agent"]);
});
