import assert from "node:assert/strict";
import { test } from "node:test";
import { Follow } from "./live-follow.js";

/** A list as a browser scrolls it: `scrollTop` is kept within its bounds. */
class List {
  clientHeight = 300;
  scrollHeight = 300;
  #top = 0;
  get scrollTop() {
    return this.#top;
  }
  set scrollTop(value) {
    this.#top = Math.max(0, Math.min(value, this.scrollHeight - this.clientHeight));
  }
  get below() {
    return this.scrollHeight - this.scrollTop - this.clientHeight;
  }
}

function grown(list, follow, pixels) {
  list.scrollHeight += pixels;
  follow.changed(list);
}

test("it follows a line of any height", () => {
  const [list, follow] = [new List(), new Follow()];
  for (const pixels of [30, 900, 161, 5000]) {
    grown(list, follow, pixels);
    assert.equal(list.below, 0);
  }
});

test("an event of the page's own move that comes after more text is not the reader's", () => {
  const [list, follow] = [new List(), new Follow()];
  grown(list, follow, 500);
  list.scrollHeight += 400;
  follow.scrolled(list);
  assert.equal(follow.following, true);
});

test("text that shrinks moves the list up, and that is not the reader either", () => {
  const [list, follow] = [new List(), new Follow()];
  grown(list, follow, 900);
  list.scrollHeight -= 600;
  list.scrollTop = list.scrollTop;
  follow.changed(list);
  list.scrollHeight += 400;
  follow.scrolled(list);
  assert.equal(follow.following, true);
});

test("a list that becomes smaller while its text shrinks was not moved by the reader", () => {
  const [list, follow] = [new List(), new Follow()];
  grown(list, follow, 900);
  list.scrollHeight -= 100; // another typeface
  list.scrollTop = list.scrollTop;
  list.clientHeight -= 150; // a card above it
  follow.scrolled(list);
  assert.equal(follow.following, true);
  follow.changed(list);
  assert.equal(list.below, 0);
});

test("a reader who scrolls up stays where he is, until he is at the end again or asks for it", () => {
  const [list, follow] = [new List(), new Follow()];
  grown(list, follow, 2000);
  list.scrollTop = 700;
  follow.scrolled(list);
  grown(list, follow, 500);
  assert.equal(list.scrollTop, 700);
  assert.equal(follow.following, false);
  list.scrollTop = 900; // down, but not to the end
  follow.scrolled(list);
  assert.equal(follow.following, false);
  list.scrollTop = list.scrollHeight - list.clientHeight - 20;
  follow.scrolled(list);
  assert.equal(follow.following, true);
  list.scrollTop = 100;
  follow.scrolled(list);
  follow.toEnd(list);
  assert.equal(list.below, 0);
  grown(list, follow, 500);
  assert.equal(list.below, 0);
});
