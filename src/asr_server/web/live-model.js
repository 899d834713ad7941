// What the Live panel says about the model: its name and state, and whether it can listen.

const SHOWN = {
  loaded: ["live.model_ready", "live.listening"],
  unloaded: ["live.model_unloaded", "live.empty_waiting"],
  loading: ["live.model_loading", "live.empty_waiting"],
  failed: ["live.model_failed", "live.empty_failed"],
};

/** {listening, key, values} of an answer of `watch`: the message of an empty recording, and that of the model's state. */
export function modelState({ health }) {
  if (!health) return { listening: "live.listening", key: "", values: {} };
  const [state, listening] = SHOWN[health.model_state] ?? SHOWN.failed;
  const values = { name: health.model_id.split("/").at(-1), reason: health.model_error, downloaded: health.downloaded_mb };
  const loading = health.model_state === "loading" && health.downloaded_mb;
  const missing = health.model_state === "unloaded" && health.model_on_disk === false;
  return { listening, key: loading ? "live.model_downloading" : missing ? "live.model_not_on_disk" : state, values };
}
