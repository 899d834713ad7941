"""Looking at the page: pictures of it, and what axe finds."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

AXE = (Path(__file__).parent / "axe/axe.min.js").read_text(encoding="utf-8")
# Two rules that axe leaves out unless they are asked for.
VIOLATIONS = """axe.run(document, { rules: {
    "label-content-name-mismatch": { enabled: true }, "target-size": { enabled: true },
} }).then(found => found.violations.map(
    one => [one.id, one.nodes.map(node => node.target.join(" "))]))"""
# The page does without its typeface where that is late, as in a browser that has just been started.
TYPEFACE = """async () => {
    const address = document.querySelector("link[as=font]").href;
    const face = new FontFace("Source Sans 3", `url(${address})`, { weight: "200 900" });
    document.fonts.add(await face.load());
}"""
SIZES = {
    "phone": {"width": 390, "height": 844},
    "tablet": {"width": 820, "height": 1100},
    "desk": {"width": 1440, "height": 900},
}
SCHEMES = ("light", "dark")
# For tests of the night, which need not run without looking too.
LOOKED = pytest.mark.parametrize("look", [True], ids=["looked"], indirect=True)
# A folder for pictures of every state: `make pictures` gives build/pictures.
_PICTURES = os.environ.get("E2E_PICTURES", "")


def audit(page: Page) -> Any:
    """Return the findings of axe on the page as it is."""
    page.evaluate(AXE)
    return page.evaluate(VIOLATIONS)


def looked_at(page: Page, name: str) -> None:
    """Axe finds nothing in any size and color scheme. Save a screenshot of each if one is requested."""
    before, found = page.viewport_size, {}
    page.evaluate(TYPEFACE)
    for scheme in SCHEMES:
        for size, viewport in SIZES.items():
            page.set_viewport_size(viewport)
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.wait_for_timeout(100)
            if _PICTURES:
                _save(page, f"{name}-{size}-{scheme}.webp")
            found[size, scheme] = audit(page)
    assert found == {look: [] for look in found}, name
    page.set_viewport_size(before)
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")


def _save(page: Page, name: str) -> None:
    # As WebP, which the driver itself cannot write.
    session = page.context.new_cdp_session(page)
    got = session.send("Page.captureScreenshot", {"format": "webp", "quality": 42})
    Path(_PICTURES).mkdir(parents=True, exist_ok=True)
    Path(_PICTURES, name).write_bytes(base64.b64decode(got["data"]))
    session.detach()
