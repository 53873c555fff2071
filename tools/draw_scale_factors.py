"""Draw docs/images/scale_factors.svg: where blocked scale factors lie, from the offsets that the kernels use.

    python tools/draw_scale_factors.py            write the picture
    python tools/draw_scale_factors.py --check    write nothing; exit 1 if the picture differs

Needs only the standard library.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/images/scale_factors.svg"
sys.path.insert(0, str(ROOT / "packages/cudnn-base/src"))

from cudnn.block_scale.layout import ATOM, ATOM_BLOCKS, ATOM_ROWS, ScaleLayout, atom_offset  # noqa: E402

BANDS = ("#9ecae1", "#fdd0a2", "#a1d99b", "#dadaeb")  # rows 0 to 31, 32 to 63, 64 to 95, 96 to 127 of an atom
WIDTH, HEIGHT = 1040, 525


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = picture()
    if parser.parse_args(argv).check:
        if TARGET.exists() and TARGET.read_text() == text:
            return 0
        print(f"{TARGET.relative_to(ROOT)} is not what the layout gives; run: python tools/draw_scale_factors.py")
        return 1
    TARGET.write_text(text)
    return 0


def picture() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        "<title>Blocked scale factors: atoms of 128 rows and 4 blocks, each 32 lines of 16 bytes</title>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#f4f4f4"/><line x1="0" y1="0" x2="0" y2="6" stroke="#bbb" stroke-width="2"/></pattern></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *matrix(40, 70),
        *atom(470, 70),
        *memory(110, 330),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def label(x: float, y: float, text: str, size: int = 13, anchor: str = "middle", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="#222">{text}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "#444", thick: float = 1) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}" stroke-width="{thick:g}"/>'


def matrix(x: float, y: float) -> list[str]:
    """All scale factors of a matrix of 200 rows and 10 blocks: atoms in the order in which they lie in memory, padding hatched."""
    layout = ScaleLayout(200, 10, 1, 1)
    width, height = 110.0, 84.0  # of an atom
    whole = layout.block_atoms * width, layout.row_atoms * height
    used = layout.blocks / ATOM_BLOCKS * width, layout.rows / ATOM_ROWS * height
    found = [
        label(x, y - 40, "scale factors of 200 rows and 10 blocks", 14, "start", "bold"),
        label(x, y - 22, "one for each row and vec columns; padding is hatched", 12, "start"),
    ]
    found += [box(x, y, *whole, "url(#hatch)"), box(x, y, *used, "#eef5fb", "none")]
    for r in range(layout.row_atoms):
        for c in range(layout.block_atoms):
            number = layout.offset(r * ATOM_ROWS, c * ATOM_BLOCKS) // ATOM
            found.append(box(x + c * width, y + r * height, width, height, "none", thick=1.5))
            found.append(label(x + (c + 0.5) * width, y + (r + 0.5) * height - 2, f"atom {number}", 14))
            found.append(label(x + (c + 0.5) * width, y + (r + 0.5) * height + 16, f"from byte {number * ATOM}", 11))
    found += [
        label(x + width / 2, y + whole[1] + 18, "4 blocks", 12),
        label(x - 8, y + height / 2, "128 rows", 12, "end")
        .replace("<text ", f'<text transform="rotate(-90 {x - 12:g} {y + height / 2:g})" ')
        .replace('text-anchor="end"', 'text-anchor="middle"'),
    ]
    return found


def atom(x: float, y: float) -> list[str]:
    """One atom as rows and blocks, in four bands of 32 rows."""
    width, height = 60.0, 42.0
    found = [label(x, y - 40, "one atom", 14, "start", "bold"), label(x, y - 22, "128 rows x 4 blocks, in bands of 32 rows", 12, "start")]
    for band, color in enumerate(BANDS):
        for block in range(ATOM_BLOCKS):
            found.append(box(x + block * width, y + band * height, width, height, color))
        found.append(label(x + ATOM_BLOCKS * width + 10, y + (band + 0.5) * height + 4, f"rows {32 * band} to {32 * band + 31}", 12, "start"))
    found += [label(x + (block + 0.5) * width, y + 4 * height + 18, f"block {block}", 12) for block in range(ATOM_BLOCKS)]
    return found


def memory(x: float, y: float) -> list[str]:
    """The same atom in memory: which row and block each byte belongs to."""
    where = {atom_offset(row, block): (row, block) for row in range(ATOM_ROWS) for block in range(ATOM_BLOCKS)}
    assert sorted(where) == list(range(ATOM))
    width, height = 54.0, 26.0
    found = [
        label(x, y - 32, "the atom in memory", 14, "start", "bold"),
        label(x, y - 14, "512 bytes, here as 32 lines of 16: row and block of each byte", 12, "start"),
    ]
    lines = (0, 1, 2, None, 31)
    for i, line in enumerate(lines):
        top = y + i * height
        if line is None:
            found.append(label(x + 8 * width, top + 17, "...", 14))
            continue
        found.append(label(x - 10, top + 17, f"byte {16 * line}", 12, "end"))
        for byte in range(16):
            row, block = where[16 * line + byte]
            found.append(box(x + byte * width, top, width, height, BANDS[row // 32]))
            found.append(label(x + (byte + 0.5) * width, top + 17, f"{row}, {block}", 11))
    bottom = y + len(lines) * height + 26
    found.append(label(x, bottom, "byte of (row, block) = 512 (row // 128 · K' + block // 4) + 16 (row % 32) + 4 (row % 128 // 32) + block % 4", 13, "start"))
    found.append(label(x, bottom + 22, "K' = ceil(blocks / 4) atoms side by side; batches follow each other", 12, "start"))
    return found


if __name__ == "__main__":
    sys.exit(main())
