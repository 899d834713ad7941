// The microphone as 16 kHz PCM. Knows no server.

import { fileUrl } from "./api.js";
import { Problem } from "./messages.js";
import { Resampler, level, toPcm } from "./resample.js";

export const RATE = 16_000;
export const BYTES_PER_SECOND = 2 * RATE;

// What a refusal is called by browsers (Media Capture and Streams, section 10.2) and here.
const REFUSALS = {
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
  #wanted = true; // to run, rather than to pause

  /** Ask for the microphone. `on`: {pcm(bytes), level(0..1), ended()}. Throws a `Problem`. */
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
    this.#context = new AudioContext({ latencyHint: "interactive" });
    await this.#context.audioWorklet.addModule(fileUrl("audio-worklet.js")).catch(() => {
      throw new Problem("unreachable");
    });
    const resampler = new Resampler(this.#context.sampleRate, RATE);
    // Where the browser gives more channels than it was asked for, the voice may be on any of them.
    const mono = { channelCount: 1, channelCountMode: "explicit" };
    const node = new AudioWorkletNode(this.#context, "gatherer", { numberOfOutputs: 1, ...mono });
    node.port.onmessage = ({ data }) => {
      on.level(level(data));
      on.pcm(toPcm(resampler.push(data)));
    };
    // A node that leads nowhere may never be run; what this one lets out is silence.
    this.#context.createMediaStreamSource(this.#stream).connect(node).connect(this.#context.destination);
    this.#stream.getAudioTracks()[0].onended = () => on.ended();
    await this.#context.resume();
    this.#context.onstatechange = this.#run;
    document.addEventListener("visibilitychange", this.#run);
  }

  /** A call, a sleep or another program may stop the sound without a word. */
  #run = () => {
    if (this.#wanted && !["running", "closed"].includes(this.#context.state)) this.#context.resume().catch(() => {});
  };

  #enable(enabled) {
    this.#wanted = enabled;
    this.#stream.getAudioTracks().forEach((track) => (track.enabled = enabled));
  }
}

/** The microphones there are. Their names are empty until the microphone was allowed once. */
export async function devices() {
  const all = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
  return all.filter((device) => device.kind === "audioinput" && device.deviceId);
}

async function ask(deviceId) {
  // Echo and noise filters are made for calls; they cost words.
  const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };
  if (deviceId) audio.deviceId = { exact: deviceId };
  try {
    return await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    throw new Problem(REFUSALS[error.name] ?? "microphone_busy");
  }
}
