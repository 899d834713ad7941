// The Status panel: a sentence about the server, charts of its work and memory, and all of `/health` folded away.
//
// open(), close()
// summary({health, problem}) -> [class, key of a message]  the state for the head of the page

import { key } from "./api.js";
import { bar, sparkline } from "./charts.js";
import { clock, find, make, say } from "./dom.js";
import { watch } from "./health.js";
import { i18n, t, text } from "./i18n.js";
import { notice } from "./notice.js";

const PERIOD_S = 3;
const REMEMBERED = 60; // points of the line: three minutes
const STATUS = { ok: "status.ready", degraded: "status.degraded", draining: "status.draining" };
const MODEL = {
  unloaded: "status.model_unloaded",
  loading: "status.model_loading",
  loaded: "status.model_loaded",
  failed: "status.model_failed",
};

const held = []; // seconds of audio that the server had accepted, one a poll
let unwatch = () => {};
let latest = null;

export function begin() {
  i18n.onchange(() => latest && draw(latest));
}

/** Poll every few seconds while the panel is open. */
export function open() {
  unwatch();
  unwatch = watch(show, PERIOD_S);
}

export function close() {
  unwatch();
  held.length = 0; // a line with a hole would not say so
}

export function summary({ health, problem }) {
  if (!health && problem.code === "unauthorized") return ["bad", key() ? "status.wrong_key" : "status.key_needed"];
  if (!health) return ["bad", problem.code === "rate_limit_exceeded" ? "status.busy" : "status.unreachable"];
  if (health.model_state === "failed") return ["bad", "status.no_model"];
  if (health.status !== "ok") return ["bad", STATUS[health.status]];
  if (health.model_state === "loading") return ["busy", "status.loading"];
  if (!health.model_loaded && health.model_on_disk === false) return ["busy", "status.no_model_yet"];
  return ["good", "status.ready"]; // a model on the disk loads within seconds
}

function show({ health, problem }) {
  notice("status", problem);
  find("status-body").hidden = !health;
  if (!health) return;
  latest = health;
  held.push(health.queue.audio_held_s);
  if (held.length > REMEMBERED) held.shift();
  draw(health);
}

function draw(health) {
  const [name, values] = sentence(health);
  text(find("status-sentence"), name, values);
  say(find("status-reason"), health.model_error);
  find("status-model").textContent = [health.model_id, health.gpu_name || (health.cuda ? "GPU" : "CPU")].join(" · ");
  find("status-charts").replaceChildren(work(health), memory(health));
  find("status-facts").replaceChildren(...facts(health).flatMap(([title, rows]) => group(title, rows)));
  const off = health.plan.filter((one) => !one.active);
  find("status-plan").replaceChildren(...health.plan.filter((one) => one.active).map(option));
  find("status-off").replaceChildren(...off.map(option));
  text(find("status-off-count"), "status.off", { count: off.length });
}

/** What matters most now: [key, values]. */
function sentence(health) {
  const busy = health.queue.running + waiting(health.queue);
  if (health.status === "draining") return ["status.says_draining", {}];
  if (health.model_state === "failed") return ["status.says_failed", {}];
  if (health.downloaded_mb) return ["status.says_downloading", { size: megabytes(health.downloaded_mb) }];
  if (health.model_state === "loading") return ["status.says_loading", {}];
  if (health.status !== "ok") return ["status.says_degraded", {}];
  if (health.model_on_disk === false) return ["status.says_not_on_disk", {}];
  if (busy) return ["status.says_busy", { count: busy }];
  return [health.model_loaded ? "status.says_idle" : "status.says_unloaded", {}];
}

function waiting(q) {
  return q.final + q.partial + q.interactive + q.bulk;
}

function work({ queue: q, live, jobs }) {
  const most = Math.max(10, ...held);
  const label = t("status.work_label", { held: clock(q.audio_held_s), limit: clock(q.audio_limit_s) });
  const figures = [
    ["status.running", q.running],
    ["status.waiting", waiting(q)],
    ...(live ? [["status.sessions", live.sessions]] : []),
    ["status.jobs", jobs],
  ];
  return card("status.work", label, sparkline(held, most, label), figures);
}

function memory(h) {
  const [used, total] = [h.kv_cache_mb + h.sessions_mb, h.kv_budget_mb];
  const parts = [{ value: h.kv_cache_mb, kind: "first" }, { value: h.sessions_mb, kind: "second" }];
  const label = total ? t("status.memory_label", { used: megabytes(used), total: megabytes(total) }) : t("status.memory_unknown");
  const figures = [
    ["status.cache", megabytes(h.kv_cache_mb), "first"],
    ["status.sessions_cache", megabytes(h.sessions_mb), "second"],
    ...(h.cuda ? [["status.gpu", megabytes(h.gpu_allocated_mb)]] : []),
  ];
  return card("status.memory", label, bar(parts, total, label), figures);
}

function card(title, label, chart, figures) {
  const list = make("dl");
  for (const [name, value, kind] of figures)
    list.append(make("div", {}, make("dt", { className: kind ?? "", textContent: t(name) }), make("dd", {}, make("bdi", { textContent: String(value) }))));
  return make("section", { className: "card" }, make("h3", { textContent: t(title) }), chart, make("p", { className: "small", textContent: label }), list);
}

function megabytes(n) {
  const [value, unit] = n >= 1024 ? [n / 1024, "GiB"] : [n, "MiB"];
  return `${new Intl.NumberFormat(i18n.language, { maximumFractionDigits: 1 }).format(value)} ${unit}`;
}

function facts(h) {
  const q = h.queue;
  return [
    ["status.server", [
      ["status.state", t(STATUS[h.status])],
      ["status.uptime", clock(h.uptime_s)],
      ["status.version", h.version],
    ]],
    ["status.model", [
      ["status.name", h.model_id],
      ["status.state", t(MODEL[h.model_state])],
      ...(h.model_revision ? [["status.revision", h.model_revision.slice(0, 12)]] : []),
      ["status.device", h.gpu_name || (h.cuda ? "GPU" : "CPU")],
      ["status.slots", h.slots || t("status.slots_unknown")],
    ]],
    ["status.speech", [
      ...(h.speech_model ? [["status.name", h.speech_model]] : []),
      ["status.state", h.speech_state === "off" ? t("status.is_off") : t(MODEL[h.speech_state])],
      ...(h.speech_error ? [["status.why", h.speech_error]] : []),
      ["status.sentences_left", h.speech_queue.sentences_left],
    ]],
    ["status.queue", [
      ["status.queue_live", q.final + q.partial],
      ["status.queue_files", q.interactive],
      ["status.queue_jobs", q.bulk],
      ["status.accepted", `${clock(q.audio_held_s)} / ${clock(q.audio_limit_s)}`],
    ]],
  ];
}

function group(title, rows) {
  const list = make("dl");
  for (const [term, value] of rows)
    list.append(make("div", {}, make("dt", { textContent: t(term) }), make("dd", {}, make("bdi", { textContent: String(value) }))));
  return make("section", {}, make("h4", { textContent: t(title) }), list);
}

function option({ name, active, value, reason }) {
  const state = active ? value || t("status.on") : t("status.is_off");
  // Names and reasons are the server's, in English.
  const cells = [make("th", { scope: "row", lang: "en", textContent: name.replaceAll("_", " ") }), make("td", { textContent: state }), make("td", { lang: "en", textContent: reason })];
  return make("tr", { className: active ? "on" : "off" }, ...cells);
}
