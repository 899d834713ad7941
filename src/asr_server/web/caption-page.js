// The page of captions of a shared session: /captions#TOKEN. Text is only ever added to a line, so that nothing flickers.
//
// In the query: background=transparent for programs that lay the page over a picture, size=1.5 for larger type.

import { url } from "./api.js";
import { CaptionLines } from "./caption-lines.js";
import { find } from "./dom.js";
import { i18n, text } from "./i18n.js";

const SIZES = { least: 0.25, most: 4 };
const ENDS = { session: "shared.ended", revoked: "shared.revoked", expired: "shared.expired" };

function setLooks(query) {
  document.documentElement.classList.toggle("transparent", query.get("background") === "transparent");
  const size = Math.min(Math.max(Number(query.get("size")) || 1, SIZES.least), SIZES.most);
  document.documentElement.style.setProperty("--size", String(size));
}

function read(token, lines) {
  const state = find("state");
  const source = new EventSource(url(`v1/live/shared/${encodeURIComponent(token)}/events`));
  source.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (event.type === "begin") text(state, lines.isEmpty ? "shared.waiting" : "");
    else if (event.type === "end") {
      source.close(); // or it would ask again
      text(state, ENDS[event.reason] ?? "shared.ended");
    } else if (event.text) {
      lines.show(event);
      text(state, "");
    }
  };
  // The browser connects again by itself, unless the server has refused.
  source.onerror = () => text(state, source.readyState === EventSource.CLOSED ? "shared.refused" : "shared.connecting");
}

const query = new URLSearchParams(location.search);
setLooks(query);
await i18n.load();
addEventListener("hashchange", () => location.reload());
if (location.hash.length > 1) read(location.hash.slice(1), new CaptionLines(find("lines")));
else text(find("state"), "shared.refused");
