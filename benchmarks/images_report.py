"""What a report of many images costs: embedding with quality measures, flags, and the page; time, memory and size.

    python -m benchmarks.images_report RUN IMAGES --out results/scale/cifar-100k.json

Each step is a command of its own, so that the peak of its memory is its own. Processor seconds are given beside the
clock's, because they hardly change when the machine does other work. With a Chromium, the page is opened in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from carl.records.environment import processor

CARL = [sys.executable, "-m", "carl"]
JUDGE = "import sys; from pathlib import Path; from carl.use.embedding_files import EmbeddingFile; from carl.use.quality_flags import flagged; import json; print(json.dumps({n: len(f.rows) for n, f in flagged(EmbeddingFile(Path(sys.argv[1]))).items()}))"  # noqa: E501


def measured(command: list[str]) -> dict[str, Any]:
    """Seconds by the clock and by the processor, and the peak of memory in MB, of a command and its children."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said)
        peak = 0
        while process.poll() is None:
            peak = max(peak, _memory(process.pid))
            time.sleep(0.2)
        clock = time.perf_counter() - start
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed")
        said.seek(0)
        words = said.read().strip()
    used = os.times()
    total = used.children_user + used.children_system
    seconds = total - measured.before  # type: ignore[attr-defined]
    measured.before = total  # type: ignore[attr-defined]
    return {"seconds": round(clock, 1), "processor_seconds": round(seconds, 1), "peak_mb": peak // 1000, "said": words}


measured.before = 0.0  # type: ignore[attr-defined]


def _memory(pid: int) -> int:
    """Resident memory of a process and its children, in kB; pages that they share count for each."""
    total = 0
    for one in [pid, *_children(pid)]:
        try:
            text = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        total += int(text.partition("VmRSS:")[2].split()[0]) if "VmRSS:" in text else 0
    return total


def _children(pid: int) -> list[int]:
    try:
        found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return found + [grandchild for child in found for grandchild in _children(child)]


def opened(page: Path) -> float | None:
    """Seconds until a Chromium has loaded and drawn the page; None without one."""
    from tests.browser import browser, find_browser

    executable = find_browser()
    if executable is None:
        return None
    with browser(executable) as running:
        tab = running.page()
        start = time.perf_counter()
        tab.open(page)
        seconds = time.perf_counter() - start
        if complaints := tab.complaints():
            raise SystemExit(f"the page complains: {complaints}")
    return round(seconds, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("images")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carl-scale-") as folder:
        embeddings, page = Path(folder) / "e.parquet", Path(folder) / "page.html"
        result: dict[str, Any] = {
            "command": f"python -m benchmarks.images_report {given.encoder} {Path(given.images).name}",
            "date": str(date.today()),
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)),
            "load": round(os.getloadavg()[0], 1),
        }
        result["embed"] = measured([*CARL, "embed", given.encoder, given.images, "-o", str(embeddings)])
        result["embed"]["file_mb"] = round(embeddings.stat().st_size / 1e6, 1)
        result["flags"] = measured([sys.executable, "-c", JUDGE, str(embeddings)])
        result["flags"]["flagged"] = json.loads(result["flags"].pop("said"))
        result["report"] = measured([*CARL, "report", given.encoder, str(embeddings), "-o", str(page)])
        result["report"]["page_mb"] = round(page.stat().st_size / 1e6, 1)
        result["report"]["opens_in_seconds"] = opened(page)
        kept = given.out.with_suffix(".html")
        if os.environ.get("KEEP_PAGE"):
            kept.write_bytes(page.read_bytes())
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
