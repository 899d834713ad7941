// The Status panel: shows `/health`.

import { key } from "./api.js";
import { clock, find, make } from "./dom.js";
import { watch } from "./health.js";
import { t, text } from "./i18n.js";
import { notice } from "./notice.js";

const STATUS = { ok: "ready", degraded: "degraded", draining: "draining" };
const MODEL = { unloaded: "not in memory", loading: "loading…", loaded: "in memory", failed: "could not be loaded" };

let unwatch = () => {};

/** Poll every few seconds while the panel is open. */
export function open() {
  unwatch();
  unwatch = watch(show, 3);
}

export function close() {
  unwatch();
}

/** The state of the server for the head of the page: [class, name of a message]. */
export function summary({ health, problem }) {
  if (!health && problem.code === "unauthorized") return ["bad", key() ? "wrong_key" : "key_needed"];
  if (!health) return ["bad", problem.code === "rate_limit_exceeded" ? "busy" : "unreachable"];
  if (health.status !== "ok") return ["bad", STATUS[health.status] ?? "degraded"];
  if (health.model_state === "loading") return ["busy", "loading"];
  if (health.model_state === "failed") return ["bad", "failed"];
  return health.model_loaded ? ["good", "ready"] : ["rest", "unloaded"];
}

function show({ health, problem }) {
  notice("status", problem);
  find("status-body").hidden = !health;
  if (!health) return;
  find("status-facts").replaceChildren(...facts(health).flatMap(([name, rows]) => group(name, rows)));
  const off = health.plan.filter((one) => !one.active);
  find("status-plan").replaceChildren(...health.plan.filter((one) => one.active).map(option));
  find("status-off").replaceChildren(...off.map(option));
  text(find("status-off-count"), "status.off", { count: off.length });
}

function facts(h) {
  const megabytes = (n) => (n >= 1024 ? `${(n / 1024).toFixed(1)} GiB` : `${n} MiB`);
  const q = h.queue;
  return [
    ["Server", [
      ["State", t(`status.${STATUS[h.status] ?? "degraded"}`)],
      ["Up for", clock(h.uptime_s)],
      ["Version", h.version],
    ]],
    ["Model", [
      ["Name", h.model_id],
      ["State", [MODEL[h.model_state] ?? h.model_state, h.model_error].filter(Boolean).join(": ")],
      ...(h.downloaded_mb ? [["Downloaded", megabytes(h.downloaded_mb)]] : []),
      ["Runs on", h.gpu_name || (h.cuda ? "GPU" : "CPU")],
    ]],
    ["Memory", [
      ...(h.cuda ? [["GPU in use", `${megabytes(h.gpu_allocated_mb)} of ${megabytes(h.gpu_reserved_mb)} reserved`]] : []),
      ["Key-value cache", `${megabytes(h.kv_cache_mb)} of ${megabytes(h.kv_budget_mb)}`],
      ["Live sessions' cache", megabytes(h.sessions_mb)],
      ["Batch slots", h.slots || "unknown until the model is loaded"],
    ]],
    ["Work", [
      ...(h.live ? [["Live sessions", h.live.waiting ? `${h.live.sessions}, ${h.live.waiting} disconnected` : h.live.sessions]] : []),
      ["Running", q.running],
      ["Waiting", `${q.final + q.partial} live, ${q.interactive} files, ${q.bulk} jobs`],
      ["Audio accepted", `${clock(q.audio_held_s)} of ${clock(q.audio_limit_s)}`],
    ]],
  ];
}

function group(name, rows) {
  const list = make("dl");
  for (const [term, value] of rows)
    list.append(make("div", {}, make("dt", { textContent: term }), make("dd", { textContent: String(value) })));
  return make("section", {}, make("h3", { textContent: name }), list);
}

function option({ name, active, value, reason }) {
  const state = active ? value || "on" : "off";
  const cells = [make("th", { scope: "row", textContent: name.replaceAll("_", " ") }), make("td", { textContent: state }), make("td", { textContent: reason })];
  return make("tr", { className: active ? "on" : "off" }, ...cells);
}
