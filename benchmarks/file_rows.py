"""CPU time of reading images from a .npy file, and of copying them from a mapping of the same file.

    python -m benchmarks.file_rows [--images 20000] [--side 32] [--batch 256]

Both read the whole file in batches: at random places as training does, and in order. The file stays in the system's
cache, so no disk is measured. The two take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from carl.data.decoding.file_arrays import FileArray, open_array

REPEATS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=32, help="pixels per side")
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    shape = (options.images, options.side, options.side, 3)
    random, in_order = generator.permutation(options.images), np.arange(options.images)
    starts = range(0, options.images, options.batch)

    def milliseconds(array: np.ndarray | FileArray, places: np.ndarray) -> float:
        begun = time.thread_time()
        for start in starts:
            np.ascontiguousarray(array[places[start : start + options.batch]])
        return 1e3 * (time.thread_time() - begun)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        np.save(path, generator.integers(0, 256, shape, np.uint8))
        arrays: dict[str, np.ndarray | FileArray] = {"mapped": np.load(path, mmap_mode="r"), "read": open_array(path)}
        for words, places in (("at random places", random), ("in order", in_order)):
            times: dict[str, list[float]] = {name: [] for name in arrays}
            for _ in range(REPEATS):
                for name, array in arrays.items():
                    times[name].append(milliseconds(array, places))
            for name, found in times.items():
                print(f"{words}, {name}: {statistics.median(found) / len(starts):.2f} ms per batch of {options.batch}")


if __name__ == "__main__":
    main()
