// Shares a live session: a link to its captions for others to read along, as text and as a QR code. It ends when it is revoked,
// and with the session.

import { postJson, remove, url } from "./api.js";
import { copy } from "./clipboard.js";
import { find, say } from "./dom.js";
import { t, text } from "./i18n.js";
import { toast } from "./toast.js";
import { encode } from "./vendor/uqr.js";

const LOCAL = new Set(["localhost", "127.0.0.1", "[::1]"]);

export class Share {
  #dialog = find("share");
  #session;
  #link = null; // {session, token, address}

  /** `session()` gives the id of the present session, "" without one. */
  constructor(session) {
    this.#session = session;
    find("live-share").onclick = () => this.#open();
    find("share-close").onclick = () => this.#dialog.close();
    find("share-copy").onclick = () => copy(this.#link.address);
    find("share-stop").onclick = () => this.#revoke();
    find("share-local").hidden = !LOCAL.has(location.hostname);
  }

  /** The state of the recording or of its connection has changed. */
  update(recording) {
    const session = this.#session();
    find("live-share").hidden = !recording || !session;
    if (this.#link && (!recording || this.#link.session !== session)) {
      if (recording) toast(t("live.share_ended"));
      this.#forget();
    }
  }

  async #open() {
    say(find("share-notice"), "");
    this.#show();
    this.#dialog.showModal();
    if (!this.#link) await this.#make();
  }

  async #make() {
    const session = this.#session();
    try {
      const { token, page } = await postJson(`v1/live/${session}/share`, {});
      this.#link = { session, token, address: url(page.replace(/^\//, "")) };
    } catch (problem) {
      say(find("share-notice"), problem.text);
    }
    this.#show();
  }

  async #revoke() {
    const { session, token } = this.#link;
    try {
      await remove(`v1/live/${session}/share/${token}`);
    } catch (problem) {
      return say(find("share-notice"), problem.text);
    }
    this.#forget();
    toast(t("live.share_stopped"));
  }

  #forget() {
    this.#link = null;
    this.#dialog.close();
    this.#show();
  }

  #show() {
    find("share-link").hidden = !this.#link;
    find("share-address").value = this.#link?.address ?? "";
    find("share-code").setAttribute("viewBox", "0 0 0 0");
    if (this.#link) draw(find("share-code"), this.#link.address);
    text(find("live-share-word"), this.#link ? "live.shared" : "live.share");
  }
}

function draw(element, address) {
  const { size, data } = encode(address, { border: 4 });
  const dots = data.flatMap((row, y) => row.map((dark, x) => (dark ? `M${x} ${y}h1v1h-1z` : "")));
  element.setAttribute("viewBox", `0 0 ${size} ${size}`);
  element.firstElementChild.setAttribute("d", dots.join(""));
}
