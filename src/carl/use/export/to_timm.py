"""A folder with config.json and model.safetensors, as timm and the Hugging Face hub have it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from carl import files
from carl.use.export.format import Compute, Export, Format, computing
from carl.use.export.to_safetensors import load_into_timm, usage_with_timm


def write(export: Export) -> None:
    from safetensors.torch import save

    path = export.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=files.PARTIAL, dir=path.parent) as beside:
        made = Path(beside) / path.name
        files.write_json(made / "config.json", _config(export))
        with files.atomic_writer(made / "model.safetensors") as file:
            file.write(save(export.weights, metadata={"format": "pt", **export.facts}))
        if is_own_folder(path):
            shutil.rmtree(path)
        made.rename(path)


def _config(export: Export) -> dict[str, object]:
    wanted, side, framing = export.wanted, export.wanted.image_size, export.wanted.framing
    # What a run saw was packed first, and where the views are of another size scaled by its own bilinear views.
    scaled_again = framing.scaled is None and framing.shape != (side, side)
    interpolation = "bilinear" if scaled_again else framing.interpolation
    modes = {"cut": "center", "stretch": "squash", "pad": "border"}
    return {
        "architecture": export.architecture,
        "num_classes": 0,
        "num_features": int(export.model(export.example).shape[1]),
        "model_args": {key: value for key, value in export.timm_arguments.items() if key != "num_classes"},
        "pretrained_cfg": {
            "input_size": [wanted.channels, side, side],
            "interpolation": interpolation,
            "crop_pct": framing.seen,
            "crop_mode": modes[framing.fit],
            "mean": list(wanted.mean),
            "std": list(wanted.std),
            "num_classes": 0,
            "license": export.source.licence,
        },
    }


def is_own_folder(path: Path) -> bool:
    """Whether a folder is what `write` makes, with its card, and holds nothing else."""
    from carl.models.safetensors_files import read_facts

    if path.is_symlink() or not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    if not {"config.json", "model.safetensors"} <= names <= {"config.json", "model.safetensors", "README.md"}:
        return False
    try:
        return {"architecture", "stem", "image_size"} <= set(read_facts(path / "model.safetensors"))
    except Exception:  # not weights of ours
        return False


def load(export: Export) -> Compute:
    import timm

    if export.config.stem == "small":
        return load_into_timm(export, export.path / "model.safetensors")
    return computing(timm.create_model(f"local-dir:{export.path}", pretrained=True))


def usage(export: Export) -> str:
    if export.config.stem == "small":  # timm has no name for this stem
        return usage_with_timm(export, export.path / "model.safetensors")
    model = f"timm.create_model({f'local-dir:{export.path}'!r}, pretrained=True)"
    return f"import timm\n\nmodel = {model}.eval()\nfeatures = model(images)"


TIMM = Format(
    words="a folder that timm.create_model loads, which suits most",
    file_name="encoder-timm",
    write=write,
    load=load,
    usage=usage,
    is_own_folder=is_own_folder,
)
