// The Live panel: microphone in, text out.

import { diagnosis } from "./api.js";
import { clock, copy, find, save, say } from "./dom.js";
import { modelNote, watch } from "./health.js";
import { fill } from "./languages.js";
import { LiveConnection } from "./live-connection.js";
import { LiveSocket } from "./live-socket.js";
import { Problem } from "./problem.js";
import { BYTES_PER_SECOND, Microphone, devices } from "./microphone.js";
import { notice } from "./notice.js";
import { cuesOf, srt, vtt } from "./subtitles.js";
import { TranscriptView } from "./transcript-view.js";

// Three minutes: what a short outage and the longest utterance need, and 6 MB of memory.
const BUFFER_BYTES = 180 * BYTES_PER_SECOND;
const FAILURES_TO_EXPLAIN = 3;
const STATE_TEXT = { paused: "Paused", finishing: "Waiting for the last words…" };
const LABELS = { idle: "Start", starting: "Starting…", live: "Stop", paused: "Stop", finishing: "Finishing…" };

let state = "idle";
let liveConnection = null;
let socket = null;
let microphone = null;
let view = null;
let unwatch = () => {};
let awake = null;
let choice = 0; // number of the latest choice of a microphone: only that one counts
let failures = 0; // failed connections in a row

const ui = {};

export function begin() {
  for (const name of ["start", "pause", "level", "time", "lag", "heard", "connection", "language", "device", "hotwords"])
    ui[name] = find(`live-${name}`);
  view = new TranscriptView(find("live-lines"), find("live-announcer"));
  fill(ui.language);
  ui.start.onclick = () => (state === "idle" ? start() : state === "finishing" ? end() : stop());
  ui.pause.onclick = () => (state === "paused" ? resume() : pause());
  ui.language.onchange = () => socket?.configure({ language: ui.language.value });
  ui.hotwords.onchange = () => socket?.configure({ hotwords: ui.hotwords.value });
  ui.device.onchange = changeDevice;
  find("live-copy").onclick = (event) => copy(event.target, plain());
  find("live-clear").onclick = () => {
    view.clear();
    refresh();
  };
  for (const format of ["txt", "srt", "vtt"]) find(`live-${format}`).onclick = () => download(format);
  navigator.mediaDevices?.addEventListener("devicechange", listDevices);
  addEventListener("beforeunload", (event) => state !== "idle" && event.preventDefault());
  document.addEventListener("visibilitychange", stayAwake);
  listDevices();
  become("idle");
}

async function start() {
  become("starting");
  notice("live", null);
  view.clear();
  try {
    microphone = await Microphone.open(ui.device.value, sound);
  } catch (problem) {
    notice("live", problem);
    become("idle");
    return;
  }
  liveConnection = new LiveConnection({ limitBytes: BUFFER_BYTES, bytesPerSecond: BYTES_PER_SECOND });
  const query = { language: ui.language.value, hotwords: ui.hotwords.value.trim() };
  socket = new LiveSocket(liveConnection, query, { state: connection, line: showLine, fresh: () => view.dropOpen(), error: showError });
  socket.open();
  unwatch = watch((answer) => say(find("live-model"), view.empty ? modelNote(answer) : ""), 2);
  become("live");
  listDevices();
  stayAwake();
  // On a phone the text needs the space.
  if (matchMedia("(max-width: 46rem)").matches) find("live-more").open = false;
}

const sound = {
  pcm(bytes) {
    if (state !== "live") return;
    socket.push(bytes);
    ui.time.textContent = clock(liveConnection.buffer.end / BYTES_PER_SECOND);
  },
  level(value) {
    const shown = state === "live" ? value : 0;
    ui.level.style.setProperty("--level", shown.toFixed(2));
    ui.level.setAttribute("aria-valuenow", Math.round(100 * shown));
  },
  ended() {
    if (state !== "live" && state !== "paused") return;
    notice("live", new Problem("microphone_gone"));
    stop();
  },
};

// While the functions below wait, other buttons may be pressed.

function pause() {
  become("paused");
  sound.level(0);
  // The pause ends the open utterance.
  socket.flush();
  microphone.pause();
}

async function resume() {
  const mine = microphone;
  await mine.resume();
  if (state !== "paused" || mine !== microphone) return;
  become("live");
  stayAwake();
}

async function stop() {
  const mine = socket;
  become("finishing");
  microphone.close();
  await mine.flush();
  if (mine === socket) end();
}

function end() {
  microphone?.close();
  socket?.close();
  unwatch();
  choice += 1;
  awake?.release();
  socket = microphone = awake = null;
  sound.level(0);
  say(find("live-model"), "");
  if (state !== "idle") become("idle");
}

async function changeDevice() {
  if (state !== "live" && state !== "paused") return;
  const mine = (choice += 1);
  try {
    const opened = await Microphone.open(ui.device.value, sound);
    if (mine !== choice || (state !== "live" && state !== "paused")) {
      opened.close();
      return;
    }
    microphone.close();
    microphone = opened;
    if (state === "paused") microphone.pause();
  } catch (problem) {
    notice("live", problem);
  }
}

function showLine(line) {
  view.show(line);
  say(find("live-model"), "");
  ui.lag.textContent = `${(line.lagMs / 1000).toFixed(1)} s behind`;
  if (line.language) ui.heard.textContent = line.language;
  refresh();
}

async function connection(name, detail) {
  // Otherwise every attempt would clear the message about the last one.
  if (name === "connecting" && ui.connection.textContent) return;
  const shown = { connecting: "Connecting…", live: STATE_TEXT[state] ?? "", waiting: "Connection lost. Still recording; trying again…", closed: "" };
  ui.connection.textContent = shown[name];
  if (name === "live") {
    failures = 0;
    const lost = Math.round(detail.lostSeconds);
    if (lost) ui.connection.textContent = `Connected again; ${lost} s of audio were lost.`;
    notice("live", null);
  } else if (name === "waiting") {
    failures += 1;
    if (detail.error && detail.error.code !== "session_not_found") showError(detail.error);
    else if (failures === FAILURES_TO_EXPLAIN) explain();
  } else if (name === "closed") {
    end();
    const { error } = detail;
    notice("live", error ? new Problem(error.code, error.message) : await diagnosis());
  }
}

/** Explain a lasting failure. A short one needs no explanation: the page reconnects. */
async function explain() {
  const found = await diagnosis();
  if (failures >= FAILURES_TO_EXPLAIN && state !== "idle" && found.code !== "cut") notice("live", found);
}

function showError(error) {
  notice("live", new Problem(error.code, error.message));
}

function become(name) {
  state = name;
  ui.start.textContent = LABELS[name];
  ui.start.disabled = name === "starting";
  ui.start.classList.toggle("on", name === "live" || name === "paused");
  ui.start.title = name === "finishing" ? "Press again to stop without the last words" : "";
  ui.pause.hidden = name !== "live" && name !== "paused";
  ui.pause.textContent = name === "paused" ? "Continue" : "Pause";
  ui.connection.textContent = STATE_TEXT[name] ?? "";
  if (name === "starting") ui.lag.textContent = ui.heard.textContent = ui.time.textContent = "";
  refresh();
}

function refresh() {
  const some = view.finished.length > 0;
  find("live-blank").hidden = !view.empty;
  find("live-empty").textContent = state === "idle" ? "Press Start and speak." : "Listening…";
  find("live-actions").hidden = !some;
}

async function listDevices() {
  const chosen = microphone?.deviceId ?? ui.device.value;
  const found = (await devices()).filter((device) => device.label);
  ui.device.replaceChildren(new Option("Default", ""), ...found.map((device) => new Option(device.label, device.deviceId)));
  ui.device.value = found.some((device) => device.deviceId === chosen) ? chosen : "";
}

function plain() {
  return view.finished.map((line) => line.committed.trim()).join("\n");
}

function download(format) {
  const segments = view.finished.map((line) => ({ start: line.start, end: line.end, text: line.committed.trim() }));
  if (format === "txt") save("transcript.txt", "text/plain", `${plain()}\n`);
  if (format === "srt") save("transcript.srt", "application/x-subrip", srt(cuesOf(segments)));
  if (format === "vtt") save("transcript.vtt", "text/vtt", vtt(cuesOf(segments)));
}

/** Keep the screen on, since a phone that sleeps stops recording. Not every browser can do this. */
async function stayAwake() {
  if (state !== "live" || document.hidden || !navigator.wakeLock || awake?.released === false) return;
  const lock = await navigator.wakeLock.request("screen").catch(() => null);
  if (state === "idle") lock?.release();
  else awake = lock;
}
