// Requests to speak a text.
//
// spoken(body, signal)      the events of POST /v1/audio/speech/stream, one for each sentence; to leave the loop ends the request
// speechFile(body, signal)  the answer of POST /v1/audio/speech as a Blob
//
// Both throw a `Problem`.

import { postJson } from "./api.js";
import { Problem } from "./problem.js";
import { EventParser } from "./sse.js";

const LAST = "[DONE]";

export async function* spoken(body, signal) {
  const answer = await postJson("v1/audio/speech/stream", body, (answer) => answer, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  let end = ""; // of what was read
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(broken);
      if (done) break;
      for (const event of parser.push(value)) {
        if (event.error) throw new Problem(event.error.code, event.error.message);
        yield event;
      }
      end = (end + value).slice(-2 * LAST.length).trimEnd();
    }
    // A proxy may end an answer as if it were whole.
    if (!end.endsWith(LAST)) broken();
  } finally {
    reader.cancel().catch(() => {});
  }
}

export function speechFile(body, signal) {
  return postJson("v1/audio/speech", body, (answer) => answer.blob().catch(broken), signal);
}

function broken() {
  throw new Problem("cut");
}
