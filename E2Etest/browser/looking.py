"""Looking at the page: pictures of it, and what axe finds."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

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
# A folder for pictures of every state: `make pictures` gives build/pictures.
_PICTURES = os.environ.get("E2E_PICTURES", "")


def looked_at(page: Page, name: str) -> Any:
    """Return the findings of axe on the page. Save a screenshot if one is requested."""
    page.evaluate(TYPEFACE)
    page.wait_for_timeout(300)
    if _PICTURES:
        # As WebP, which the driver itself cannot write.
        session = page.context.new_cdp_session(page)
        got = session.send("Page.captureScreenshot", {"format": "webp", "quality": 42})
        Path(_PICTURES).mkdir(parents=True, exist_ok=True)
        Path(_PICTURES, f"{name}.webp").write_bytes(base64.b64decode(got["data"]))
        session.detach()
    page.evaluate(AXE)
    return page.evaluate(VIOLATIONS)
