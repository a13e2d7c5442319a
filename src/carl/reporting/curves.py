"""Line charts as small SVG elements."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 320, 150, 46, 22, 8


def curve(title: str, points: Sequence[tuple[float, float]]) -> dict[str, object]:
    """A chart of (epoch, value) points, with its title and last value."""
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    low, high = min(ys), max(ys)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    end = max(max(xs), 1e-9)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 6) * value / end

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    marks = "".join(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2"/>' for a, b in points) if len(points) < 40 else ""
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f'<path class="axis" d="M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - 6}"/>'
        f'<text x="{LEFT - 4}" y="{TOP + 8}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{LEFT - 4}" y="{HEIGHT - BOTTOM}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">0</text>'
        f'<text x="{WIDTH - 6}" y="{HEIGHT - 6}" text-anchor="end">epoch {end:g}</text>'
        f'<polyline points="{path}"/>{marks}</svg>'
    )
    return {"title": title, "svg": Markup(svg), "last": f"{ys[-1]:.4g}"}
