// Uploads a recording and reads the response as it arrives. XMLHttpRequest, since fetch reports no upload progress.

import { authorization, diagnosis, url } from "./api.js";
import { Problem } from "./problem.js";
import { EventParser } from "./sse.js";

/** Post `file` with `fields`. `on`: {sent(fraction), text(response so far)}. Returns {done, abort}; `done` resolves to
 * the text of the whole response, or rejects with a `Problem`. */
export function post(path, file, fields, on) {
  const request = new XMLHttpRequest();
  let sent = false;
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (value) form.append(name, value);
  form.append("model", "whisper-1"); // a name that every server has
  form.append("file", file); // last, so that a wrong field is found before the upload
  const done = new Promise((resolve, reject) => {
    request.upload.onprogress = (event) => event.lengthComputable && on.sent(event.loaded / event.total);
    request.upload.onload = () => {
      sent = true;
      on.sent(1);
    };
    request.onprogress = () => request.status === 200 && on.text(request.responseText);
    request.onabort = () => reject(new Problem("cut"));
    request.onerror = async () => reject(await reason(file, sent));
    request.onload = () => (request.status === 200 ? resolve(request.responseText) : reject(refusal(request)));
  });
  request.open("POST", url(path));
  for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
  request.send(form);
  return { done, abort: () => request.abort() };
}

/** The problem of an answer. One without room for now has `retryAfterS`. */
function refusal(request) {
  const problem = Problem.ofAnswer(request.status, request.responseText);
  if (request.status === 429) problem.retryAfterS = Math.max(1, Number(request.getResponseHeader("Retry-After")) || 1);
  return problem;
}

/** As `post`, on the route of native events. `on.duration(seconds)` where the recording says how long it is, and
 * `on.segment({text, start, end, language, complete, words?})` for each span. Resolves to {language, duration, complete, coverage, peaks}: the parts of the
 * recording as they are stored, and its loudness. */
export function stream(file, fields, on) {
  const parser = new EventParser();
  let read = 0;
  let whole = null;
  let failure = null;
  const take = (all) => {
    for (const event of parser.push(all.slice(read))) {
      if (event.error) failure = new Problem(event.error.code, event.error.message);
      else if (event.is_final) whole = event;
      else if ("chunk_index" in event) on.segment({ ...event, text: event.text.trim() });
      else if (event.duration) on.duration(event.duration);
    }
    read = all.length;
  };
  const sending = post("v1/audio/transcriptions/stream", file, fields, { sent: on.sent, text: take });
  const done = sending.done.then((all) => {
    take(all);
    if (failure || !whole) throw failure ?? new Problem("cut");
    const coverage = whole.coverage?.parts.map(({ kind, reason, start, end }) => ({ kind, reason, start, end }));
    return { language: whole.language, duration: whole.end, complete: whole.complete, coverage, peaks: whole.peaks };
  });
  return { done, abort: sending.abort };
}

/** Why an upload failed. A server that rejects a body early may look like a broken connection. */
async function reason(file, sent) {
  if (!(await readable(file))) return new Problem("file_gone");
  const found = await diagnosis();
  return found.code === "cut" && !sent ? new Problem("upload_cut") : found;
}

function readable(file) {
  return file.slice(0, 1).arrayBuffer().then(() => true, () => false);
}
