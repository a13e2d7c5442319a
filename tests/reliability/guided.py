"""One reader fuzzed by atheris, guided by the coverage of our code: `python -m tests.reliability.guided READER ...`.

soak.py starts one such process for each reader where atheris is installed (`pip install atheris`).
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["carl"]):
    from tests.reliability.fuzzing import REFUSALS, TARGETS


def main() -> None:
    name, seconds, seed, folder = sys.argv[1:]
    reader, seeds = TARGETS[name]
    corpus = Path(folder) / "corpus"
    corpus.mkdir(parents=True)
    for number, content in enumerate(seeds()):
        (corpus / str(number)).write_bytes(content)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    warnings.simplefilter("ignore")

    def try_one(content: bytes) -> None:
        try:
            reader(content, scratch)
        except REFUSALS:
            return

    limits = [f"-max_total_time={float(seconds):.0f}", f"-seed={seed}", "-timeout=20", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *limits, "-max_len=65536", f"-artifact_prefix={folder}/", str(corpus)], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
