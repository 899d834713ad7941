// The microphone as 16 kHz PCM.

import { fileUrl } from "./api.js";
import { Problem } from "./problem.js";
import { Resampler, level, toPcm } from "./resample.js";

export const RATE = 16_000;
export const BYTES_PER_SECOND = 2 * RATE;

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
    // A browser may give more channels than asked for, with the voice on any of them: mix them.
    const mono = { channelCount: 1, channelCountMode: "explicit" };
    const node = new AudioWorkletNode(this.#context, "gatherer", { numberOfOutputs: 1, ...mono });
    node.port.onmessage = ({ data }) => {
      on.level(level(data));
      on.pcm(toPcm(resampler.push(data)));
    };
    // An unconnected node may never run; the output of this one is silence.
    this.#context.createMediaStreamSource(this.#stream).connect(node).connect(this.#context.destination);
    this.#stream.getAudioTracks()[0].onended = () => on.ended();
    await this.#context.resume();
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

/** The available microphones. Their names are empty until the microphone was allowed once. */
export async function devices() {
  const all = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
  return all.filter((device) => device.kind === "audioinput" && device.deviceId);
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
