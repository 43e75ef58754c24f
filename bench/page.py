# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page for a benchmark: a table, and charts as SVG."""

import html
import math

STYLE = """
body { font: 15px sans-serif; max-width: 56em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; } td, th { padding: .3em .8em; text-align: right; }
td:first-child, th:first-child { text-align: left; } tr:nth-child(even) { background: #f2f2f2; }
svg { width: 100%; } text { font: 13px sans-serif; fill: #222; }
.grid { stroke: #ddd; } polyline { fill: none; stroke-width: 2; }
"""
COLOURS = ["#2b6cb0", "#b7791f", "#2f855a", "#c53030", "#6b46c1", "#4a5568"]


def table(head, rows):
    """`head` and each row: the texts of a line's cells."""
    cells = ["".join(f"<th>{html.escape(text)}</th>" for text in head)]
    cells += ["".join(f"<td>{html.escape(text)}</td>" for text in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in cells) + "</table>"


def bars(title, values, form, colour=lambda name: COLOURS[0]):
    """A bar for each (name, value)."""
    most = max(value for _, value in values)
    height, left, width = 26, 190, 460
    parts = [
        f'<svg viewBox="0 0 {left + width + 90} {height * len(values) + 8}" role="img"'
        f' aria-label="{html.escape(title)}">'
    ]
    for row, (name, value) in enumerate(values):
        y, length = row * height, value / most * width
        parts.append(f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(
            f'<rect fill="{colour(name)}" x="{left}" y="{y + 4}" width="{length:.1f}" height="18"/>'
        )
        parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 18}">{form.format(value)}</text>')
    return "\n".join([f"<h2>{html.escape(title)}</h2>", *parts, "</svg>"])


def decades(values):
    """The powers of ten around some numbers."""
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)


def lines(title, series, x_texts, y_title):
    """Lines over a logarithmic axis: `series` {name: [value or None for each of x_texts]}."""
    left, top, width, height = 60, 10, 560, 300
    powers = decades([value for values in series.values() for value in values if value])
    low, high = powers[0], powers[-1]

    def at_x(place):
        return left + width * place / max(1, len(x_texts) - 1)

    def at_y(value):
        return top + height * (high - math.log10(value)) / (high - low)

    parts = [
        f'<svg viewBox="0 0 {left + width + 120} {top + height + 40}" role="img"'
        f' aria-label="{html.escape(title)}">'
    ]
    for power in powers:
        y = at_y(10**power)
        parts.append(f'<line class="grid" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for place, text in enumerate(x_texts):
        parts.append(f'<text x="{at_x(place):.1f}" y="{top + height + 20}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{left}" y="{top + height + 36}">bytes a rank; up: {html.escape(y_title)}</text>')
    # Names at the ends of their lines, apart from each other.
    ends, lowest = [], 0
    for number, (name, values) in enumerate(series.items()):
        known = [(place, value) for place, value in enumerate(values) if value]
        points = " ".join(f"{at_x(place):.1f},{at_y(value):.1f}" for place, value in known)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{points}" stroke="{colour}"/>')
        ends.append((at_y(known[-1][1]), at_x(known[-1][0]), name, colour))
    for y, x, name, colour in sorted(ends):
        lowest = max(y + 4, lowest + 15)
        parts.append(f'<text x="{x + 8:.1f}" y="{lowest:.1f}" style="fill:{colour}">{html.escape(name)}</text>')
    return "\n".join([f"<h2>{html.escape(title)}</h2>", *parts, "</svg>"])


def document(title, introduction, parts):
    """The page."""
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<p>{html.escape(introduction)}</p>
{body}
</body></html>
"""
