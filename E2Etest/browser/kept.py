"""What the page keeps in its browser."""

_KEPT = """async () => {
    const { store } = await import(new URL("web/store.js", location.href));
    await store.open();
    return Promise.all((await store.list()).map(async one => {
        const sound = await store.sound(one.id);
        return { ...one, rows: await store.rows(one.id), seconds: sound ? (sound.size - 44) / 32000 : 0 };
    }));
}"""


def kept(page):
    """The transcripts, newest first, each with its `rows` and the `seconds` of its sound."""
    return page.evaluate(_KEPT)
