// Whether a scrolled list follows its newest line: it does until the reader scrolls up, and again from its end on.

const NEAR_PX = 48; // so near to the end the reader is at the end

export class Follow {
  following = true;
  #top = 0; // where the list stood last
  #end = 0; // and its last place

  /** The list was scrolled, by the reader or by the page. Text that grows fires no event of its own, but the event of an
   * earlier move may come after it: only a move up is the reader's, and only in a list that has kept its size, since one that
   * shrinks is moved up by the browser. */
  scrolled({ scrollTop, scrollHeight, clientHeight }) {
    const end = scrollHeight - clientHeight;
    if (end - scrollTop <= NEAR_PX) this.following = true;
    else if (scrollTop < this.#top && end === this.#end) this.following = false;
    this.#top = scrollTop;
    this.#end = end;
  }

  /** The text changed: show its end, unless the reader is reading above. */
  changed(list) {
    if (this.following) this.toEnd(list);
  }

  toEnd(list) {
    this.following = true;
    list.scrollTop = list.scrollHeight;
    this.#top = list.scrollTop;
    this.#end = list.scrollHeight - list.clientHeight;
  }
}
