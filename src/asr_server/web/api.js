// Where the server is, the key, and requests that fail with a `Problem`. Knows no panel.

import { Problem } from "./messages.js";

const KEY = "api-key"; // of the browser's session storage: gone with the tab
const ROOT = new URL("..", import.meta.url);

export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** A route of the server, given without its leading slash: the page may live under a prefix. */
export function url(path) {
  return new URL(path, ROOT).href;
}

/** A file of the page. */
export function fileUrl(name) {
  return new URL(name, import.meta.url).href;
}

/** The live socket with these query parameters; empty ones are left out. */
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

/** The JSON that a GET answers. Throws a `Problem`. */
export async function get(path) {
  let answer;
  try {
    answer = await fetch(url(path), { headers: authorization(), cache: "no-store" });
  } catch {
    throw new Problem("unreachable");
  }
  const body = await answer.text();
  if (!answer.ok) throw Problem.ofAnswer(answer.status, body);
  return JSON.parse(body);
}

/** Why a connection that told no reason could not be made. */
export async function diagnosis() {
  try {
    await get("v1/models");
    const health = await get("health");
    return new Problem(health.status === "draining" ? "shutting_down" : "cut");
  } catch (problem) {
    return problem;
  }
}
