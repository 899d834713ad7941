"""Fonts that are made for tests."""

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen

from asr_server.features.documents import fonts


@pytest.fixture
def font_folder(monkeypatch, tmp_path):
    """The folder in which fonts are looked for."""
    monkeypatch.setattr(fonts, "FOLDERS", (tmp_path,))
    return tmp_path


@pytest.fixture
def make_font(font_folder):
    """Returns a function that makes a font with a square for each of these characters."""

    def make(name, characters):
        glyphs = {f"u{ord(char):04X}": char for char in sorted(set(characters))}
        pen = TTGlyphPen(None)
        for place in ((100, 0), (100, 500), (600, 500), (600, 0)):
            (pen.lineTo if place != (100, 0) else pen.moveTo)(place)
        pen.closePath()
        order = [".notdef", *glyphs]
        builder = FontBuilder(1000, isTTF=True)
        builder.setupGlyphOrder(order)
        builder.setupCharacterMap({ord(char): glyph for glyph, char in glyphs.items()})
        builder.setupGlyf(dict.fromkeys(order, pen.glyph()))
        builder.setupHorizontalMetrics(dict.fromkeys(order, (700, 100)))
        builder.setupHorizontalHeader(ascent=800, descent=-200)
        builder.setupNameTable({"familyName": name, "styleName": "Regular", "psName": name})
        builder.setupOS2(sTypoAscender=800, sTypoDescender=-200, usWinAscent=800, usWinDescent=200)
        builder.setupPost()
        builder.save(font_folder / f"{name}.ttf")
        return font_folder / f"{name}.ttf"

    return make
