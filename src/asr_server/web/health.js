// The server's state, asked for while somebody looks. Shows nothing.

import { get } from "./api.js";

const watchers = new Map(); // function -> seconds between two answers
let timer = 0;
let asking = false;
let latest = null;

/** Call `told({health, problem})` about every `seconds` while the page is visible; returns how to stop. */
export function watch(told, seconds) {
  watchers.set(told, seconds);
  if (latest) told(latest);
  ask();
  return () => {
    watchers.delete(told);
  };
}

/** Ask now. */
export async function ask() {
  clearTimeout(timer);
  if (asking || document.hidden || !watchers.size) return;
  asking = true;
  try {
    latest = { health: await get("health"), problem: null };
  } catch (problem) {
    latest = { health: null, problem };
  }
  asking = false;
  for (const told of watchers.keys()) told(latest);
  timer = setTimeout(ask, 1000 * Math.min(...watchers.values()));
}

document.addEventListener("visibilitychange", ask);

const MODEL = {
  unloaded: "The model is not in memory; it is loaded with the first words.",
  loading: "The model is being loaded… If the server does not have it yet, it is downloaded first.",
  failed: "The model could not be loaded; “Status” says why.",
};

/** What there is to say about a model that is not ready, else "". */
export function modelNote({ health }) {
  return health ? (MODEL[health.model_state] ?? "") : "";
}
