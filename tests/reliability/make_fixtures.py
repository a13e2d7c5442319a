"""Makes fixtures/version-1.tar.xz: `python -m tests.reliability.make_fixtures`.

A run directory, its data and a packed store as version 1 of their formats wrote them. They are never made anew for
version 1: a reader that no longer reads them has broken a promise. Weights are rounded coarsely to pack small.

fixtures/version-1-used.tar.xz was made by hand, with the source of commit 55e7cdc, the last before the package got its
present layout: what `carl eval`, `carl embed` and `carl pretrain --resume --set log.report=true` made of that run.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import carl
from carl.data import open_dataset
from carl.data.sources.shapes import make_shapes

ARCHIVE = Path(__file__).parent / "fixtures" / "version-1.tar.xz"
USED = ARCHIVE.with_name("version-1-used.tar.xz")
DATA = "DATA-FOLDER"  # stands in config.toml for where the data were


def coarse(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        key: (value * 8).round() / 8 if value.is_floating_point() and value.ndim > 1 else value
        for key, value in weights.items()
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        os.environ["CARL_CACHE"] = str(root / "cache")
        (images, labels), (test, test_labels) = make_shapes(12, 0), make_shapes(8, 1)
        small = [np.ascontiguousarray(pixels[:, ::2, ::2]) for pixels in (images, test)]
        np.savez_compressed(root / "data.npz", x_train=small[0], y_train=labels, x_test=small[1], y_test=test_labels)
        settings = {"method.prototypes": 4, "model.hidden_dim": 8, "model.output_dim": 8, "log.report": False}
        run = carl.pretrain(
            root / "data.npz", out=root / "run", backbone="test_resnet", epochs=1, batch_size=4,
            settings={**settings, "probe.images": 10, "probe.train_images": 10},
        )  # fmt: skip
        for file in ("encoder.safetensors", "head.safetensors"):
            save_file(coarse(load_file(run / file)), run / file)
        state = torch.load(run / "checkpoint.pt", weights_only=True)
        for values in state["optimizer"]["state"].values():
            for value in values.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        torch.save({**state, "method": coarse(state["method"])}, run / "checkpoint.pt")
        config = (run / "config.toml").read_text()
        (run / "config.toml").write_text(config.replace(str(root), DATA))
        environment = json.loads((run / "environment.json").read_text())
        environment |= {"executable": "python", "command": ["carl"]}
        (run / "environment.json").write_text(json.dumps(environment, indent=2))
        photos = root / "photos"
        for number, pixels in enumerate(small[0]):
            (photos / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(photos / "ab"[number % 2] / f"{number}.png")
        (photos / "a" / "bad.png").write_bytes(b"")
        shutil.rmtree(root / "cache")
        open_dataset(photos)
        (entry,) = (root / "cache" / "packed").iterdir()
        entry.rename(root / "store")
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
            for part in ("run", "data.npz", "store"):
                archive.add(root / part, part)


if __name__ == "__main__":
    main()
