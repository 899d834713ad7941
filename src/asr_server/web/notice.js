// The message at the head of a panel.

import { find } from "./dom.js";

/** Remove the notice of a panel if it has this code. */
export function dismiss(panel, code) {
  if (find(`${panel}-notice`).dataset.code === code) notice(panel, null);
}

/** Show a `Problem` in the notice of a panel; null removes the notice. */
export function notice(panel, problem) {
  const element = find(`${panel}-notice`);
  const text = problem ? (problem.text ?? String(problem)) : "";
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
  element.dataset.code = problem?.code ?? "";
}
