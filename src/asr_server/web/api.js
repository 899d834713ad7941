// The address of the server, the API key, and requests that fail with a `Problem`.

import { Problem } from "./problem.js";
import { storage } from "./web-storage.js";

const KEY = "api-key"; // in the session storage, which ends with the tab
const LONG_ANSWER_MS = 120_000; // of a language model
const ANSWER_MS = 10_000; // a stopped process still accepts connections
// Scripts are at web/VERSION/NAME below the page.
const ROOT = new URL("../..", import.meta.url);

const kept = storage("sessionStorage");

export function key() {
  return kept.getItem(KEY) ?? "";
}

/** Store the key without characters that no key has, such as invisible ones from copying. */
export function keepKey(value) {
  kept.setItem(KEY, value.replace(/[^ -~]/g, "").trim());
  if (!key()) kept.removeItem(KEY);
}

/** A route of the server, given without its leading slash: the page may live under a prefix. */
export function url(path) {
  return new URL(path, ROOT).href;
}

/** A file of the page. */
export function fileUrl(name) {
  return new URL(name, import.meta.url).href;
}

/** The URL of the live socket with these query parameters; empty ones are omitted. */
export function liveUrl(query) {
  const found = new URL("ws/transcribe", ROOT);
  found.protocol = found.protocol.replace("http", "ws");
  // A browser cannot set headers on a socket.
  for (const [name, value] of Object.entries({ ...query, token: key() })) if (value) found.searchParams.set(name, value);
  return found.href;
}

export function authorization() {
  return key() ? { Authorization: `Bearer ${key()}` } : {};
}

/** The JSON body of a GET. Throws a `Problem`. */
export function get(path) {
  return asked(path, { headers: authorization(), cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) }, jsonOf);
}

/** What `read` makes of the answer to a POST of `body` as JSON, by default its JSON. Throws a `Problem`. */
export function postJson(path, body, read = jsonOf, signal = AbortSignal.timeout(LONG_ANSWER_MS)) {
  const headers = { ...authorization(), "Content-Type": "application/json" };
  return asked(path, { method: "POST", headers, body: JSON.stringify(body), signal }, read);
}

/** Delete this. Throws a `Problem`. */
export function remove(path) {
  return asked(path, { method: "DELETE", headers: authorization(), signal: AbortSignal.timeout(ANSWER_MS) }, () => null);
}

/** The bytes of the answer to such a POST. Throws a `Problem`. */
export function postForFile(path, body) {
  return postJson(path, body, async (answer) => new Uint8Array(await answer.arrayBuffer()));
}

const jsonOf = (answer) => answer.json();

async function asked(path, options, read) {
  try {
    const answer = await fetch(url(path), options);
    if (!answer.ok) throw Problem.ofAnswer(answer.status, await answer.text());
    return await read(answer);
  } catch (problem) {
    throw problem instanceof Problem ? problem : new Problem("unreachable");
  }
}

/** Why a connection failed that gave no reason. */
export async function diagnosis() {
  try {
    await get("v1/models");
    const health = await get("health");
    return new Problem(health.status === "draining" ? "shutting_down" : "cut");
  } catch (problem) {
    return problem;
  }
}
