// The Live panel: microphone in, text out. A recording is a LiveRecording; this module shows it.

import { diagnosis, postJson } from "./api.js";
import { Captions } from "./captions.js";
import { copy } from "./clipboard.js";
import { find, say } from "./dom.js";
import { exportMenu } from "./export-menu.js";
import { hasOption, watch } from "./health.js";
import { i18n, t, text } from "./i18n.js";
import { fill, nameOf } from "./languages.js";
import { keepAwake } from "./live-awake.js";
import { InterruptedOffer } from "./live-interrupted.js";
import { Lag } from "./live-lag.js";
import { Meter } from "./live-meter.js";
import { modelState } from "./live-model.js";
import { LINE_STEP } from "./live-keeper.js";
import { LiveRecording } from "./live-recording.js";
import { keepTail, leftOf } from "./live-recovery.js";
import { Replay } from "./live-replay.js";
import { Share } from "./live-share.js";
import { LiveView, spokenText } from "./live-view.js";
import { fillDevices } from "./microphone.js";
import { notice } from "./notice.js";
import { Problem } from "./problem.js";
import * as reader from "./reader.js";
import { withName } from "./speakers.js";
import { store } from "./store.js";
import { toast } from "./toast.js";
import { storage } from "./web-storage.js";

const FAILURES_TO_EXPLAIN = 3;
const LAG_MS = 1000; // how often it is counted
const SHORTEST_S = 2; // a recording that failed earlier holds nothing yet
const WORDS = { idle: "live.start", starting: "live.starting", live: "live.stop", paused: "live.stop", finishing: "live.finishing" };

let recording = null; // the present one, or the last
let shownId = ""; // the transcript whose lines are shown
let failures = 0; // failed connections in a row
let server = { health: null, problem: null };
let view;
let captions;
let offer;
let meter;
let share;
let lag = new Lag();
let connected = false;
const replay = new Replay();
const ui = {};

export function begin() {
  for (const name of ["start", "pause", "lag", "heard", "connection", "translation", "language", "device", "hotwords", "target", "speakers", "unlabelled"])
    ui[name] = find(`live-${name}`);
  meter = new Meter();
  share = new Share(() => recording?.session ?? "");
  const parts = { list: find("live-lines"), sheet: find("live-sheet"), latest: find("live-latest"), announcer: find("live-announcer") };
  view = new LiveView(parts, { replay: playLine, rename: nameSpeaker });
  captions = new Captions();
  offer = new InterruptedOffer({
    busy: () => state() !== "idle",
    // The lines of a recording that has just ended stay.
    show: (found) => view.empty && showKept(found, found.rows),
    resume: (found) => start(found),
    finish: (found) => finish(found),
  });
  reader.offer({ resume: goOn });
  fill(ui.language);
  fill(ui.target);
  listen();
  listDevices();
  become("idle");
  setInterval(showLag, LAG_MS);
  offer.begin();
}

function listen() {
  ui.start.onclick = press;
  ui.pause.onclick = () => (state() === "paused" ? recording.resume() : recording.pause());
  ui.language.onchange = () => recording?.configure({ language: ui.language.value });
  ui.hotwords.onchange = () => recording?.configure({ hotwords: ui.hotwords.value.trim() });
  ui.target.onchange = () => recording?.translateInto(ui.target.value);
  ui.device.onchange = changeDevice;
  find("live-copy").onclick = () => copy(plain());
  exportMenu(find("live-export"), kept);
  find("live-captions").onclick = () => captions.show(view.lines, view.names);
  navigator.mediaDevices?.addEventListener("devicechange", listDevices);
  addEventListener("beforeunload", (event) => state() !== "idle" && event.preventDefault());
  addEventListener("pagehide", keep);
  document.addEventListener("visibilitychange", () => {
    // A phone may end a page that is hidden without a further event.
    if (document.hidden) recording?.settle();
    keepAwake(state() === "live");
  });
  i18n.onchange(() => {
    listDevices();
    become(state());
    view.call(view.names);
  });
  store.onchange(({ type, id }) => type === "transcript" && id === shownId && callSpeakers());
  store.onproblem((code) => state() !== "idle" && notice("live", new Problem(code)));
}

/** "idle", or the state of the recording. */
function state() {
  return recording && recording.state !== "ended" ? recording.state : "idle";
}

function press() {
  const now = state();
  if (now === "idle") start();
  else if (now === "finishing") recording.end();
  else recording.stop();
}

/** Record, or go on with what an interrupted recording left. */
async function start(found = null) {
  const mine = made(found);
  try {
    await mine.start(ui.device.value);
  } catch (problem) {
    notice("live", problem);
    await mine.end();
    offer.look();
    return;
  }
  listDevices();
  // On a phone the text needs the space.
  if (matchMedia("(max-width: 46rem), (max-height: 34rem)").matches) find("live-more").open = false;
}

function finish(found) {
  made(found).finish();
}

/** Transcribe what a recording that was cut off has left. While another one is under way, only show that. */
async function goOn(transcript) {
  location.hash = "live";
  if (state() === "idle") finish(await leftOf(store, transcript));
}

function made(found) {
  notice("live", null);
  replay.stop();
  offer.hide();
  failures = 0;
  ui.heard.textContent = "";
  lag = new Lag();
  say(ui.translation, "");
  ui.unlabelled.hidden = true;
  // The rows behind the last final come again.
  if (found) showKept(found, found.rows.filter(({ n }) => n <= found.lines * LINE_STEP));
  else view.clear();
  const words = hasOption(server.health, "aligner") ? "accurate" : "fast";
  const speakers = hasOption(server.health, "speakers") && ui.speakers.checked ? "true" : "";
  const query = { language: ui.language.value, hotwords: ui.hotwords.value.trim(), words, speakers };
  const date = new Intl.DateTimeFormat(i18n.language, { dateStyle: "medium", timeStyle: "short" }).format();
  const options = { language: query.language, hotwords: query.hotwords, speakers: speakers && "auto" };
  const metadata = { title: t("live.untitled", { date }), model: server.health?.model_id ?? "", options };
  recording = new LiveRecording(store, { query, metadata, found, translate }, events());
  recording.translateInto(ui.target.value);
  become("starting");
  return recording;
}

/** What a recording tells the panel. */
function events() {
  return {
    state: become,
    connection,
    line: showLine,
    fresh: () => view.dropOpen(),
    speakers(key, speakers) {
      view.speak(key, speakers);
      captions.update(view.lines, view.names);
    },
    unlabelled: () => (ui.unlabelled.hidden = false),
    translated(key, translation) {
      view.translate(key, translation, ui.target.value);
      captions.update(view.lines, view.names);
    },
    translation: (problem) => say(ui.translation, problem ? t("live.translation_failed", { reason: problem.text }) : ""),
    error: showError,
    sound: showSound,
    full: () => say(find("live-kept"), t("live.not_kept")),
    gone() {
      notice("live", new Problem("microphone_gone"));
      recording.stop();
    },
    ended,
  };
}

/** The transcript has this `id`; `said`: whether it has words; `error`: why it ended, or null. */
async function ended({ id, said, error }) {
  shownId = id;
  refresh();
  if (said) {
    // Here a toast would cover the buttons of the recording.
    if (find("live").hidden) toast(t("live.saved"), { action: t("live.open"), run: () => (location.hash = `t/${id}`) });
    else text(ui.connection, "live.saved");
  } else if (!error || recording.seconds < SHORTEST_S) {
    const undo = await store.remove(id);
    if (!error) toast(t("live.nothing_said"), { action: t("live.keep"), run: undo });
  }
  offer.look();
}

async function translate(texts, target) {
  const { translations, reasons } = await postJson("v1/text/translations", { texts, target_language: target });
  return translations.map((found, i) => (reasons[i] ? null : found));
}

/** The page goes away: what the store has not taken is kept at once. */
function keep() {
  try {
    keepTail(storage("localStorage"), recording?.tail() ?? null);
  } catch {
    // The storage is full or forbidden: the last second is lost.
  }
}

async function changeDevice() {
  if (state() !== "live" && state() !== "paused") return;
  try {
    await recording.useMicrophone(ui.device.value);
  } catch (problem) {
    notice("live", problem);
  }
}

function showSound(level, seconds) {
  meter.push(level, seconds);
  meter.time(recording.seconds, state());
}

function showLine(line) {
  view.show(line);
  captions.update(view.lines, view.names);
  lag.line(line, Date.now());
  showLag();
  if (line.language) ui.heard.textContent = nameOf(line.languageCode) || line.language;
  refresh();
}

function showLag() {
  const ms = state() === "idle" ? null : lag.now(Date.now(), 1000 * recording.unsentS);
  text(ui.lag, ms === null ? "" : "live.behind", { seconds: ((ms ?? 0) / 1000).toFixed(1) });
  // Without a connection, that is what is said.
  const slow = ms !== null && connected && lag.slow;
  if (slow === find("live-slow").hidden) text(find("live-slow"), slow ? "live.too_slow" : "");
  find("live-slow").hidden = !slow;
}

async function connection(name, detail) {
  connected = name === "live";
  share.update(state() === "live" || state() === "paused");
  // Otherwise every attempt would clear the message about the last one.
  if (name === "connecting" && ui.connection.textContent) return;
  if (name === "live") {
    failures = 0;
    const lost = Math.round(detail.lostSeconds);
    text(ui.connection, lost ? "live.lost" : (stateText() ?? ""), { count: lost });
    notice("live", null);
    return;
  }
  text(ui.connection, { connecting: "live.connecting", waiting: "live.reconnecting", closed: "" }[name]);
  if (name === "waiting") {
    failures += 1;
    if (detail.error && detail.error.code !== "session_not_found") showError(detail.error);
    else if (failures === FAILURES_TO_EXPLAIN) explain();
  } else if (name === "closed") {
    const { error } = detail;
    notice("live", error ? new Problem(error.code, error.message) : await diagnosis());
  }
}

/** Explain a lasting failure. A short one needs no explanation: the page reconnects. */
async function explain() {
  const found = await diagnosis();
  if (failures >= FAILURES_TO_EXPLAIN && state() !== "idle" && found.code !== "cut") notice("live", found);
}

function showError(error) {
  notice("live", new Problem(error.code, error.message));
}

function showServer(answer) {
  server = answer;
  find("live-target-field").hidden = !hasOption(answer.health, "translation");
  find("live-speakers-field").hidden = !hasOption(answer.health, "speakers");
  refresh();
}

function stateText() {
  return { paused: "live.paused", finishing: "live.last_words" }[state()];
}

function become(name) {
  const now = state();
  text(find("live-start-word"), WORDS[now]);
  ui.start.disabled = name === "starting";
  ui.speakers.disabled = now !== "idle"; // a session has them from its beginning
  ui.start.dataset.state = now;
  ui.start.title = now === "finishing" ? t("live.finishing_about") : "";
  ui.pause.hidden = now !== "live" && now !== "paused";
  text(find("live-pause-word"), now === "paused" ? "live.continue" : "live.pause");
  text(ui.connection, stateText() ?? "");
  find("live-lines").classList.toggle("replayable", now === "idle" || now === "paused");
  if (now !== "live") meter.clear();
  if (now === "starting") say(find("live-kept"), "");
  keepAwake(now === "live");
  showLag();
  share.update(now === "live" || now === "paused");
  meter.mark(recording?.seconds ?? 0, now);
  // While it records, the state of the model matters more.
  watch(showServer, now === "idle" ? 10 : 2);
  refresh();
}

function refresh() {
  const now = state();
  const { listening, key, values } = modelState(server);
  find("live-blank").hidden = !view.empty;
  text(find("live-empty"), now === "idle" ? "live.empty" : listening);
  find("live-drop").hidden = now !== "idle";
  text(find("live-model"), key, values);
  const done = now === "idle" || now === "paused";
  find("live-actions").hidden = !done || !view.finished.length;
  if (now !== "idle") shownId = recording.id;
  find("live-open").hidden = now !== "idle" || !shownId;
  find("live-open").href = `#t/${shownId}`;
}

function showKept({ transcript }, rows) {
  shownId = transcript.id;
  view.restore(rows, transcript);
  refresh();
}

function nameSpeaker(speaker, name) {
  store.update(shownId, withName(view.names, speaker, name));
}

/** Speakers may be named in the reader too. */
async function callSpeakers() {
  const found = await store.get(shownId);
  if (!found || JSON.stringify(found.speakers) === JSON.stringify(view.names)) return;
  view.call({ ...view.names, ...found.speakers });
  captions.update(view.lines, view.names);
}

/** What is kept of the lines that are shown. */
async function kept() {
  await recording?.settle();
  return { transcript: await store.get(shownId), rows: await store.rows(shownId) };
}

async function playLine(line) {
  await recording?.settle();
  const found = await replay.play(await store.sound(shownId), line);
  if (!found) toast(t("live.no_sound"));
}

function listDevices() {
  return fillDevices(ui.device, recording?.microphone || ui.device.value);
}

function plain() {
  return view.finished.map((line) => spokenText(line, view.names)).join("\n");
}
