// Offers to go on with a recording that was cut off: to record more, or to transcribe the end of its sound.

import { clock, find } from "./dom.js";
import { i18n, t } from "./i18n.js";
import { MOST_AGAIN_BYTES } from "./live-recording.js";
import { interrupted, restoreTails } from "./live-recovery.js";
import { BYTES_PER_SECOND } from "./resample.js";
import { store } from "./store.js";
import { storage } from "./web-storage.js";

export class InterruptedOffer {
  #on;
  #found = null;
  #looking = Promise.resolve();

  /** `on`: {busy() -> whether a recording is under way, show(found), resume(found), finish(found)}. */
  constructor(on) {
    this.#on = on;
    find("live-continue").onclick = () => this.#take(on.resume);
    find("live-rest").onclick = () => this.#take(on.finish);
    find("live-leave").onclick = () => this.#leave();
    i18n.onchange(() => this.#show());
  }

  async begin() {
    await store.open();
    await restoreTails(store, storage("localStorage"));
    // The store learns a moment later that the page which recorded is gone.
    store.onchange((change) => change.type !== "rows" && this.look());
    this.look();
  }

  look() {
    this.#looking = this.#looking.then(async () => {
      if (this.#on.busy()) return;
      const before = this.#found?.transcript.id;
      const found = await interrupted(store);
      if (this.#on.busy()) return;
      this.#found = found;
      this.#show();
      if (found && found.transcript.id !== before) this.#on.show(found);
    });
  }

  hide() {
    find("live-interrupted").hidden = true;
    this.#found = null;
  }

  #show() {
    find("live-interrupted").hidden = !this.#found;
    if (!this.#found) return;
    const { transcript, soundBytes, from } = this.#found;
    const time = clock(soundBytes / BYTES_PER_SECOND);
    find("live-interrupted-text").textContent = t("live.interrupted", { title: transcript.title, time });
    find("live-continue").hidden = soundBytes - from > MOST_AGAIN_BYTES;
  }

  #take(run) {
    const found = this.#found;
    this.hide();
    if (found) run(found);
  }

  async #leave() {
    const found = this.#found;
    this.hide();
    if (found) await store.update(found.transcript.id, { live: null });
  }
}
