// The Speak panel: a text is read aloud by the server, or made into a file.
//
// begin(), open(), close()
// take(text)        show the panel with this text
// takeFile(file)    the same with that of a file; isText(file) says whether it is one

import { get } from "./api.js";
import { find, make, save, say } from "./dom.js";
import { watch } from "./health.js";
import { i18n, t, text } from "./i18n.js";
import { speechLanguages } from "./languages.js";
import { notice } from "./notice.js";
import { SpeechOutput } from "./speech-output.js";
import { SpeechPlayer } from "./speech-player.js";
import { speechFile, spoken } from "./speech-request.js";
import { characters, cleaned, decoded, hasWords, sentences } from "./speech-text.js";
import { toast } from "./toast.js";
import { storage } from "./web-storage.js";

const MORE = "more"; // the value of the option that shows rare languages
const SETTINGS = ["voice", "language", "speed", "format"];
const MOST_BYTES = 4; // of a character in a file
const STATES = { waiting: "speak.waiting", loading: "speak.loading", paused: "speak.paused" };

const kept = storage("localStorage");
const player = new SpeechPlayer(spoken, new SpeechOutput(), changed);
let voices = null;
let asking = false; // for the voices
let isOpen = false;
let most = Infinity; // characters
let mode = ""; // what is read: "text", or "trial" of a voice
let saving = null; // AbortController of a download
let isLoaded = false; // the engine of speech

export function begin() {
  for (const name of SETTINGS) {
    find(`speak-${name}`).onchange = ({ target }) => {
      if (target.value === MORE) return fillLanguages(true);
      kept.setItem(`speech-${name}`, target.value);
      if (name === "voice") fillLanguages();
      if (name !== "format") startAgain();
    };
  }
  for (const name of ["speed", "format"]) choose(name);
  find("speak-text").oninput = show;
  find("speak-read").onclick = read;
  find("speak-stop").onclick = stop;
  find("speak-try").onclick = tryVoice;
  find("speak-save").onclick = download;
  find("speak-again").onclick = again;
  find("speak-file").onchange = ({ target }) => {
    if (target.files[0]) takeFile(target.files[0]);
    target.value = ""; // so that the same file can be chosen again
  };
  const sheet = find("speak-sheet");
  sheet.onclick = ({ target }) => readFrom(target.closest(".spoken"));
  sheet.onkeydown = moveInSheet;
  i18n.onchange(() => {
    fillLanguages();
    show();
  });
  watch(({ health }) => {
    if (!health) return;
    most = health.limits.text_chars;
    isLoaded = health.speech_state === "loaded";
    if (isOpen && !voices) askForVoices(); // with a new key, or of a server that is back
    show();
  }, 10);
  show();
}

export function open() {
  isOpen = true;
  if (!voices) askForVoices();
}

/** What cannot be seen is not read on. */
export function close() {
  isOpen = false;
  if (mode === "trial") player.stop();
  if (player.state === "reading" || player.state === "waiting") player.pause();
}

export function isText({ name, type }) {
  return type === "text/plain" || /\.(txt|text|md)$/i.test(name);
}

export async function takeFile(file) {
  if (file.size > MOST_BYTES * most) {
    location.hash = "speak";
    return notice("speak", { text: t("speak.too_long", { most }) });
  }
  try {
    take(decoded(new Uint8Array(await file.arrayBuffer())));
  } catch {
    notice("speak", { text: t("errors.file_gone") });
  }
}

export function take(given) {
  stop();
  if (voices) notice("speak", null);
  find("speak-text").value = given;
  location.hash = "speak";
  show();
}

// -- what can be chosen -------------------------------------------------------------------------------------------------

async function askForVoices() {
  if (asking) return;
  asking = true;
  try {
    // OpenAI's names come first, and several may be the same voice. A name also finds a voice for what this one does not speak.
    const offered = new Map();
    for (const one of (await get("v1/audio/voices")).data) if (!offered.has(realVoice(one))) offered.set(realVoice(one), one);
    voices = [...offered.values()];
    notice("speak", null);
    find("speak-voice").replaceChildren(...voices.map((one) => new Option([realVoice(one), one.description].filter(Boolean).join(": "), one.id)));
    choose("voice");
    fillLanguages();
  } catch (problem) {
    notice("speak", problem);
  }
  asking = false;
  show();
}

function realVoice({ id, alias_of }) {
  return alias_of ?? id;
}

/** Choose as before, where that is still offered. */
function choose(name) {
  const select = find(`speak-${name}`);
  const wanted = kept.getItem(`speech-${name}`);
  if ([...select.options].some(({ value }) => value === wanted)) select.value = wanted;
}

function voice() {
  return voices?.find(({ id }) => id === find("speak-voice").value);
}

/** Rare languages are shown when they are asked for, or one of them was chosen before. */
function fillLanguages(all = false) {
  const select = find("speak-language");
  const { frequent, rare } = speechLanguages(voice()?.languages ?? [], i18n.language);
  const wantsRare = all || rare.some(([code]) => code === kept.getItem("speech-language"));
  const others = wantsRare || !rare.length ? rare : [[MORE, t("speak.more_languages")]];
  select.replaceChildren(select.options[0], ...[...frequent, ...others].map(([code, name]) => new Option(name, code)));
  select.value = "";
  choose("language");
}

function fields() {
  const [voiceId, language, speed] = ["voice", "language", "speed"].map((name) => find(`speak-${name}`).value);
  return { voice: voiceId, speed: Number(speed), ...(language && { language }) };
}

// -- reading --------------------------------------------------------------------------------------------------------------

function read() {
  if (mode !== "text") begun("text", givenText(), 0, fields());
  else if (player.state === "failed") again();
  else if (player.state === "paused") player.resume();
  else player.pause();
}

function begun(what, given, from, how) {
  notice("speak", null);
  if (what === "text" && mode !== "text") lay(given);
  mode = what;
  player.start(given, from, how);
}

function stop() {
  if (player.problem) notice("speak", null);
  player.stop();
}

/** With what was chosen meanwhile, from the sentence on that is read. */
function startAgain() {
  if (mode !== "text" || player.state === "idle") return;
  const isPaused = player.state === "paused";
  begun("text", givenText(), player.sentence?.start ?? 0, fields());
  if (isPaused) player.pause();
}

function again() {
  notice("speak", null);
  if (player.problem) player.retry();
  else askForVoices();
}

function tryVoice() {
  if (mode === "trial") return player.stop();
  const { language, ...how } = fields();
  // The sentence is in the language of the page.
  const own = voice().languages.includes(i18n.language) ? { language: i18n.language } : {};
  begun("trial", t("speak.sample"), 0, { ...how, ...own });
}

/** Places are the same as in the field. */
function givenText() {
  return cleaned(find("speak-text").value);
}

async function download() {
  if (saving) return saving.abort();
  const [mine, response_format, input] = [new AbortController(), find("speak-format").value, givenText()];
  saving = mine;
  show();
  try {
    const file = await speechFile({ ...fields(), input, response_format }, mine.signal);
    const { fileName } = await import("./export.js");
    save(`${fileName(input.trim().split("\n", 1)[0])}.${response_format}`, file.type, file);
  } catch (problem) {
    if (!mine.signal.aborted) toast(problem.text, { action: t("speak.again"), run: download });
  }
  saving = null;
  show();
}

// -- what is shown ----------------------------------------------------------------------------------------------------------

function changed(arrived) {
  if (arrived && mode === "text") join(arrived);
  // They will be hidden.
  const hadFocus = ["speak-stop", "speak-sheet"].some((id) => find(id).contains(document.activeElement));
  if (player.state === "idle") mode = "";
  isLoaded ||= player.state === "reading";
  if (player.problem) notice("speak", player.problem);
  show();
  if (mode === "text") mark();
  else if (hadFocus) find("speak-read").focus();
}

function show() {
  const given = find("speak-text").value;
  const [count, isRead, isTrial] = [characters(given), mode === "text", mode === "trial"];
  const usable = hasWords(given) && count <= most;
  find("speak-work").hidden = !voices;
  find("speak-again").hidden = find("speak-notice").hidden || (voices ? !player.problem : find("speak-notice").dataset.code === "speech_unavailable");
  find("speak-text").hidden = isRead;
  find("speak-sheet").hidden = find("speak-stop").hidden = !isRead;
  find("speak-read").disabled = !isRead && !usable;
  find("speak-save").disabled = !saving && !usable;
  text(find("speak-read"), isRead ? (["paused", "failed"].includes(player.state) ? "speak.continue" : "speak.pause") : "speak.read");
  text(find("speak-try"), isTrial ? "speak.stop" : "speak.try");
  text(find("speak-save"), saving ? "speak.cancel" : "speak.save");
  text(find("speak-count"), Number.isFinite(most) ? "speak.count" : "", { count, most });
  find("speak-count").classList.toggle("over", count > most);
  const said = [count > most ? t("speak.too_long", { most }) : "", t(STATES[player.state === "waiting" && !isLoaded ? "loading" : player.state] ?? ""), saving ? t("speak.making") : ""];
  say(find("speak-state"), said.filter(Boolean).join(" "));
  find("speak-state").hidden = false; // its line stays, so that nothing moves
}

/** The text with its sentences, each of which can be chosen. */
function lay(given) {
  const sheet = find("speak-sheet");
  const shown = find("speak-text").value;
  const parts = [];
  let end = 0;
  for (const one of sentences(given, find("speak-language").value.split("-")[0] || i18n.language)) {
    const element = make("span", { className: "spoken", tabIndex: parts.length ? -1 : 0, textContent: shown.slice(one.start, one.end) });
    element.setAttribute("role", "button");
    Object.assign(element.dataset, one);
    parts.push(shown.slice(end, one.start), element);
    end = one.end;
  }
  sheet.replaceChildren(...parts, shown.slice(end));
}

/** Make one of what the page took for several sentences and the server has spoken as one. */
function join({ start, end }) {
  const parts = spokenBetween(start, end);
  const [first, last] = [parts[0], parts.at(-1)];
  if (first === last) return;
  const between = new Range();
  between.setStartAfter(first);
  between.setEndAfter(last);
  first.append(between.toString());
  first.dataset.end = last.dataset.end;
  between.deleteContents();
}

function spokenBetween(start, end) {
  return [...find("speak-sheet").querySelectorAll(".spoken")].filter(({ dataset }) => Number(dataset.start) < end && start < Number(dataset.end));
}

/** Show which sentence is spoken. The sheet follows, unless somebody has scrolled away from the last one. */
function mark() {
  const { start, end } = player.sentence ?? { start: 0, end: 0 };
  const sheet = find("speak-sheet");
  const before = [...sheet.querySelectorAll(".now")];
  const now = spokenBetween(start, end);
  if (!now.length || now[0] === before[0]) return;
  const isFollowed = !before.length || isInSight(before[0], sheet);
  for (const element of before) {
    element.classList.remove("now");
    element.removeAttribute("aria-current");
  }
  for (const element of now) {
    element.classList.add("now");
    element.setAttribute("aria-current", "true");
  }
  if (!sheet.contains(document.activeElement)) reach(now[0]);
  if (isFollowed) now[0].scrollIntoView({ block: "nearest" });
}

function isInSight(element, sheet) {
  const [own, around] = [element.getBoundingClientRect(), sheet.getBoundingClientRect()];
  return own.bottom > around.top && own.top < around.bottom;
}

/** The one sentence that the Tab key reaches. */
function reach(element) {
  for (const one of find("speak-sheet").querySelectorAll('[tabindex="0"]')) one.tabIndex = -1;
  element.tabIndex = 0;
}

function readFrom(element) {
  if (!element) return;
  reach(element);
  begun("text", givenText(), Number(element.dataset.start), fields());
}

function moveInSheet(event) {
  const all = [...find("speak-sheet").querySelectorAll(".spoken")];
  const at = all.indexOf(event.target);
  const forward = getComputedStyle(event.currentTarget).direction === "rtl" ? -1 : 1;
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, ArrowRight: at + forward, ArrowLeft: at - forward, Home: 0, End: all.length - 1 }[event.key];
  if (at < 0 || (to === undefined && event.key !== "Enter" && event.key !== " ")) return;
  event.preventDefault();
  if (to === undefined) return readFrom(event.target);
  const next = all[Math.max(0, Math.min(to, all.length - 1))];
  reach(next);
  next.focus();
}
