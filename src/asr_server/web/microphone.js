// The microphone as 16 kHz PCM.

import { fileUrl } from "./api.js";
import { t } from "./i18n.js";
import { Problem } from "./problem.js";
import { Resampler, level, toPcm } from "./resample.js";
import { RATE } from "./wav.js";

const START_MS = 4000; // a context that has not begun to run by then does not

// Browsers' names of microphone errors (Media Capture and Streams, section 10.2), and this page's codes.
const ERROR_CODES = {
  NotAllowedError: "microphone_refused",
  SecurityError: "microphone_refused",
  NotFoundError: "microphone_missing",
  OverconstrainedError: "microphone_missing",
  NotReadableError: "microphone_busy",
  AbortError: "microphone_busy",
};

export class Microphone {
  #stream;
  #context;
  #enabled = true;

  /** Ask for the microphone. `on`: {pcm(bytes), level(0..1, seconds), ended()}. Throws a `Problem`. */
  static async open(deviceId, on) {
    if (!globalThis.isSecureContext || !navigator.mediaDevices) throw new Problem("insecure");
    const microphone = new Microphone();
    microphone.#stream = await ask(deviceId);
    try {
      await microphone.#listen(on);
    } catch (error) {
      microphone.close();
      throw error;
    }
    return microphone;
  }

  get deviceId() {
    return this.#stream.getAudioTracks()[0].getSettings().deviceId ?? "";
  }

  pause() {
    this.#enable(false);
    return this.#context.suspend().catch(() => {}); // closed meanwhile
  }

  resume() {
    this.#enable(true);
    return this.#context.resume().catch(() => {});
  }

  close() {
    this.#stream.getTracks().forEach((track) => track.stop());
    document.removeEventListener("visibilitychange", this.#run);
    if (this.#context && this.#context.state !== "closed") this.#context.close();
  }

  async #listen(on) {
    this.#context = await runningContext();
    await this.#context.audioWorklet.addModule(fileUrl("audio-worklet.js")).catch(() => {
      throw new Problem("unreachable");
    });
    const resampler = new Resampler(this.#context.sampleRate, RATE);
    // A browser may give more channels than asked for, with the voice on any of them: mix them.
    const mono = { channelCount: 1, channelCountMode: "explicit" };
    const node = new AudioWorkletNode(this.#context, "gatherer", { numberOfOutputs: 1, ...mono });
    node.port.onmessage = ({ data }) => {
      on.level(level(data), data.length / this.#context.sampleRate);
      on.pcm(toPcm(resampler.push(data)));
    };
    // An unconnected node may never run; the output of this one is silence.
    this.#context.createMediaStreamSource(this.#stream).connect(node).connect(this.#context.destination);
    this.#stream.getAudioTracks()[0].onended = () => on.ended();
    this.#context.onstatechange = this.#run;
    document.addEventListener("visibilitychange", this.#run);
  }

  /** Resume after a phone call, sleep or another program stopped the audio without an event. */
  #run = () => {
    if (this.#enabled && !["running", "closed"].includes(this.#context.state)) this.#context.resume().catch(() => {});
  };

  #enable(enabled) {
    this.#enabled = enabled;
    this.#stream.getAudioTracks().forEach((track) => (track.enabled = enabled));
  }
}

/** An `AudioContext` that runs. Without a sound output some browsers never run one; a sink of the kind "none" needs no
 * output, where the browser has it. Throws a `Problem` instead of waiting for ever. */
export async function runningContext() {
  const choices = "setSinkId" in AudioContext.prototype ? [{}, { sinkId: { type: "none" } }] : [{}];
  for (const choice of choices) {
    const context = new AudioContext({ latencyHint: "interactive", ...choice });
    const late = new Promise((resolve) => setTimeout(resolve, START_MS));
    await Promise.race([context.resume().catch(() => {}), late]);
    if (context.state === "running") return context;
    context.close().catch(() => {});
  }
  throw new Problem("sound_not_started");
}

/** Offer the available microphones in a select, with `chosen` (a device's id) selected if it is there. */
export async function fillDevices(select, chosen) {
  const all = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
  // Their names are empty until the microphone was allowed once.
  const found = all.filter((device) => device.kind === "audioinput" && device.deviceId && device.label);
  const options = found.map((device) => new Option(device.label, device.deviceId));
  select.replaceChildren(new Option(t("live.default_device"), ""), ...options);
  select.value = found.some((device) => device.deviceId === chosen) ? chosen : "";
}

async function ask(deviceId) {
  // Echo and noise filters are made for calls; they lose words.
  const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };
  if (deviceId) audio.deviceId = { exact: deviceId };
  try {
    return await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    throw new Problem(ERROR_CODES[error.name] ?? "microphone_busy");
  }
}
