// One message for people at the head of a panel: shown, read out, taken away.

import { find } from "./dom.js";

/** Take away what a panel says of this code. */
export function settle(panel, code) {
  if (find(`${panel}-notice`).dataset.code === code) notice(panel, null);
}

/** Show a `Problem` in the notice of a panel, or take it away with null. */
export function notice(panel, problem) {
  const element = find(`${panel}-notice`);
  const text = problem ? (problem.text ?? String(problem)) : "";
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
  element.dataset.code = problem?.code ?? "";
}
