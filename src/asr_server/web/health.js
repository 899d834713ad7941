// Polls `/health` while the page is visible.

import { get } from "./api.js";
import { t } from "./i18n.js";

const watchers = new Map(); // function -> seconds between two calls
let timer = 0;
let asking = false;
let latest = null;

/** Call `listener({health, problem})`, of which one is null, about every `seconds`. Returns a function that stops. */
export function watch(listener, seconds) {
  watchers.set(listener, seconds);
  if (latest) listener(latest);
  ask();
  return () => {
    watchers.delete(listener);
  };
}

/** Poll now. */
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
  for (const listener of watchers.keys()) listener(latest);
  timer = setTimeout(ask, 1000 * Math.min(...watchers.values()));
}

document.addEventListener("visibilitychange", ask);

/** Whether an option of the server is active. */
export function hasOption(health, name) {
  return Boolean(health?.plan.some((option) => option.name === name && option.active));
}

/** A sentence about a model that is not ready, else "". */
export function modelNote({ health }) {
  if (!health || health.model_loaded) return "";
  if (health.model_state === "failed") return t("status.note_failed", { reason: health.model_error });
  if (health.downloaded_mb) return t("status.note_downloading", { size: `${health.downloaded_mb} MiB` });
  if (health.model_state === "loading") return t("status.note_loading");
  return t(health.model_on_disk === false ? "status.note_not_on_disk" : "status.note_unloaded");
}
