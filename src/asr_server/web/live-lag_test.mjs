import assert from "node:assert/strict";
import { test } from "node:test";

import { Lag } from "./live-lag.js";

test("before the first line nothing is known", () => assert.equal(new Lag().now(5000, 0), null));

test("it counts while an open line gets no more words, and begins anew with them", () => {
  const lag = new Lag();
  lag.line({ final: false, lagMs: 300 }, 1000);
  assert.equal(lag.now(1500, 0), 300);
  assert.equal(lag.now(17_000, 0), 16_300);
  lag.line({ final: false, lagMs: 400 }, 17_100);
  assert.equal(lag.now(17_200, 0), 400);
});

test("nobody waits for words after the end of a line", () => {
  const lag = new Lag();
  lag.line({ final: true, lagMs: 600 }, 1000);
  assert.equal(lag.now(60_000, 0), 600);
});

test("sound that the connection has not taken is behind", () => {
  const lag = new Lag();
  lag.line({ final: true, lagMs: 600 }, 1000);
  assert.equal(lag.now(60_000, 8000), 8000);
});

test("the server is too slow from ten seconds on, until it is well below that", () => {
  const lag = new Lag();
  const slow = [];
  for (const lagMs of [9000, 10_000, 6000, 4000, 9000]) {
    lag.line({ final: true, lagMs }, 0);
    lag.now(1, 0);
    slow.push(lag.slow);
  }
  assert.deepEqual(slow, [false, true, true, false, false]);
});
