"""What the quality checks find and miss: planted defects, false alarms on ordinary photos, agreement with CleanVision.

    python -m benchmarks.quality PHOTOS.parquet --folder FOLDER --out results/quality/NAME.json [--cleanvision ITS.json]

Writes the photos as they are to FOLDER/photos, and a changed copy of every fifth one for each defect to FOLDER/DEFECT.
CleanVision is not needed: in an environment of its own it makes the file to compare with, from FOLDER/photos:

    python -c "import sys, json, os; from cleanvision import Imagelab; lab = Imagelab(data_path=sys.argv[1]);
    lab.find_issues(n_jobs=1, verbose=False); d = lab.issues; flags = {c[3:-6]: [os.path.basename(p) for p in
    d.index[d[c]]] for c in d.columns if c.startswith('is_')}; json.dump(flags, open(sys.argv[2], 'w'))" FOLDER ITS.json
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image, ImageEnhance, ImageFilter

from carl.data.decoding.decode import decode_measured
from carl.quality import CHECKS, Flagged, Value, judge, measures
from carl.records.environment import processor

SHAPE = (96, 96)
EVERY = 5


def _scaled(image: Image.Image, factor: float) -> Image.Image:
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.resize(size, Image.Resampling.BICUBIC)


def _cropped(image: Image.Image, part: float) -> Image.Image:
    left, top = round(image.width * part), round(image.height * part)
    return image.crop((left, top, image.width - left, image.height - top))


# For each defect the check that should find it, and how it is made.
DEFECTS: dict[str, tuple[str, Callable[[Image.Image], Image.Image]]] = {
    "brightness x 0.1": ("dark", lambda image: ImageEnhance.Brightness(image).enhance(0.1)),
    "brightness x 0.25": ("dark", lambda image: ImageEnhance.Brightness(image).enhance(0.25)),
    "overexposed": ("bright", lambda image: image.point(lambda value: min(255, value + 245))),
    "blur 2% of the side": ("blurry", lambda image: image.filter(ImageFilter.GaussianBlur(min(image.size) * 0.02))),
    "blur 4% of the side": ("blurry", lambda image: image.filter(ImageFilter.GaussianBlur(min(image.size) * 0.04))),
    "blur 8% of the side": ("blurry", lambda image: image.filter(ImageFilter.GaussianBlur(min(image.size) * 0.08))),
    "one shade": ("low-detail", lambda image: Image.new("RGB", image.size, image.resize((1, 1)).getpixel((0, 0)))),
    "a strip of 1 to 5": ("odd-shape", lambda image: image.crop((0, 0, image.width, image.width // 5))),
    "a quarter of the size": ("odd-size", lambda image: _scaled(image, 0.25)),
    "grey": ("grey", lambda image: image.convert("L").convert("RGB")),
    "the same file": ("exact-copies", lambda image: image),
    "JPEG of quality 30": ("near-copies", lambda image: image),
    "half the size": ("near-copies", lambda image: _scaled(image, 0.5)),
    "2% brighter": ("near-copies", lambda image: ImageEnhance.Brightness(image).enhance(1.02)),
    "10% brighter": ("near-copies", lambda image: ImageEnhance.Brightness(image).enhance(1.1)),
    "2% cut off each side": ("near-copies", lambda image: _cropped(image, 0.02)),
    "mirrored": ("near-copies", lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
}
THEIRS = {
    "dark": "dark", "bright": "light", "blurry": "blurry", "low-detail": "low_information", "odd-size": "odd_size",
    "odd-shape": "odd_aspect_ratio", "grey": "grayscale", "exact-copies": "exact_duplicates",
    "near-copies": "near_duplicates",
}  # fmt: skip


def judged(contents: list[dict[str, Value]]) -> dict[str, Flagged]:
    kinds = {"float32": np.float32, "int32": np.int32, "text": np.str_}
    return judge({n: np.array([one[n] for one in contents]).astype(kinds[m.kind]) for n, m in measures().items()})


def saved(image: Image.Image, quality: int = 90) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cleanvision", type=Path)
    given = parser.parse_args()
    files = [row["bytes"] for row in pq.read_table(given.photos, columns=["image"])["image"].to_pylist()]
    (given.folder / "photos").mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(files):
        (given.folder / "photos" / f"{number:05d}.jpg").write_bytes(content)
    start = time.process_time()
    ordinary = [decode_measured(content, SHAPE)[1] for content in files]
    seconds = time.process_time() - start
    found = judged(ordinary)
    result: dict[str, Any] = {
        "photos": given.photos.name,
        "images": len(files),
        "date": str(date.today()),
        "processor": processor(),
        "processor_milliseconds_per_image_decoding_included": round(1000 * seconds / len(files), 2),
        "flagged_as_they_are": {name: len(flag.rows) for name, flag in found.items()},
        "planted": {},
    }
    for defect, (check, change) in DEFECTS.items():
        rows = []
        for number in range(0, len(files), EVERY):
            with Image.open(io.BytesIO(files[number])) as image:
                changed = change(image.convert("RGB"))
            quality = 30 if "30" in defect else 90
            content = files[number] if check == "exact-copies" else saved(changed, quality)
            rows.append(decode_measured(content, SHAPE)[1])
        hits = 0
        for place, row in enumerate(rows):  # one at a time: a defect that many images share would be what is usual
            flag = judged([*ordinary, row])[check] if check in ("odd-size", "grey") and place < 40 else None
            hits += 0 if flag is None else len(files) in flag.rows
        tried = min(40, len(rows))
        if check not in ("odd-size", "grey"):
            flag = judged([*ordinary, *rows])[check]
            tried = len(rows)
            if flag.sets:
                pairs = {(int(a), int(b)) for group in flag.sets for a in group for b in group}
                hits = sum((EVERY * place, len(files) + place) in pairs for place in range(len(rows)))
            else:
                hits = int((flag.rows >= len(files)).sum())
        result["planted"][defect] = {"check": check, "found": hits, "of": tried}
    if given.cleanvision is not None:
        theirs = json.loads(given.cleanvision.read_text())
        result["cleanvision"] = {}
        for check in CHECKS:
            ours = {f"{row:05d}.jpg" for row in found[check].rows}
            other = set(theirs[THEIRS[check]])
            same = len(files) - len(ours ^ other)
            counts = {"ours": len(ours), "theirs": len(other), "both": len(ours & other)}
            result["cleanvision"][check] = counts | {"same_answer": round(same / len(files), 4)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
