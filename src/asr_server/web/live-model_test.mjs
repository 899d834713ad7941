import assert from "node:assert/strict";
import { test } from "node:test";
import { modelState } from "./live-model.js";

const of = (state, more = {}) => modelState({ health: { model_id: "Qwen/Qwen3-ASR-0.6B", model_state: state, model_error: "", downloaded_mb: 0, ...more } });

test("only a model that is loaded listens", () => {
  const states = ["loaded", "unloaded", "loading", "failed", "a state of a newer server"];
  assert.deepEqual(states.filter((state) => of(state).listening === "live.listening"), ["loaded"]);
});

test("its name is shown without its owner, a failure with its reason, a download with its size", () => {
  assert.equal(of("loaded").values.name, "Qwen3-ASR-0.6B");
  assert.equal(of("failed", { model_error: "no such file" }).values.reason, "no such file");
  assert.equal(of("unloaded", { model_on_disk: false }).key, "live.model_not_on_disk");
  assert.deepEqual([of("loading").key, of("loading", { downloaded_mb: 12 }).key], ["live.model_loading", "live.model_downloading"]);
});

test("of a server that does not answer nothing is said here", () => {
  assert.equal(modelState({ health: null }).key, "");
});
