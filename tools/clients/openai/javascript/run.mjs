// Runs every scenario with the client that the environment names; one line of JSON for each case.

import "./failing.mjs";
import "./leaving.mjs";
import "./speakers.mjs";
import "./speech.mjs";
import "./streaming.mjs";
import "./transcribing.mjs";
import "./waiting.mjs";
import { ENTRIES } from "./world.mjs";

async function performAll(entries) {
  for (const { item, name, perform } of entries) {
    let ok = true;
    let seen = "";
    try {
      await perform();
    } catch (error) {
      ok = false;
      seen = `${error?.name}: ${error?.message}`.slice(0, 500);
    }
    console.log(JSON.stringify({ item, case: name, ok, seen }));
  }
}

// Cases that mostly wait go on beside the others, one line of them after another.
const lines = new Map();
for (const entry of ENTRIES) lines.set(entry.aside, [...(lines.get(entry.aside) ?? []), entry]);
await Promise.all([...lines.values()].map(performAll));
