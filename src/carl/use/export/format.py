"""What an export format is. Importing this imports no torch, so the command line can list the formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor, nn

    from carl.config import ModelConfig
    from carl.models.pretrained import Source, WantedInput

Compute: TypeAlias = "Callable[[Tensor], Tensor]"  # images to features


@dataclass(frozen=True, eq=False)
class Export:
    """An encoder to be written, and where."""

    model: nn.Module  # on the CPU, with plain convolutions only
    config: ModelConfig
    wanted: WantedInput
    path: Path
    source: Source
    address: str = ""  # where it goes after it is written, if the user named a place: USER/NAME of hub:USER/NAME

    @property
    def architecture(self) -> str:
        return self.config.backbone.split(".")[0]  # without the name of pretrained weights

    @property
    def example(self) -> Tensor:
        """Two images: torch's exporter would take a batch of one for a constant."""
        import torch

        return torch.zeros(2, self.wanted.channels, self.wanted.image_size, self.wanted.image_size)

    @property
    def weights(self) -> dict[str, Tensor]:
        return {key: value.detach().cpu().contiguous() for key, value in self.model.state_dict().items()}

    @property
    def facts(self) -> dict[str, str]:
        """What an exported file says about itself."""
        from carl.models.pretrained.weights import stated

        return stated(self.config.backbone, self.config.stem, self.wanted, self.source)

    @property
    def timm_arguments(self) -> dict[str, Any]:
        """What timm.create_model needs besides the name."""
        import timm

        arguments: dict[str, Any] = {"num_classes": 0, "in_chans": self.wanted.channels}
        known = timm.get_pretrained_cfg(self.architecture)
        if known is not None and known.fixed_input_size:
            arguments["img_size"] = self.wanted.image_size
        return arguments


@dataclass(frozen=True)
class Format:
    """A format that an encoder can be exported to."""

    words: str  # what it is, for the help
    file_name: str  # of the file or folder where the user names none
    write: Callable[[Export], None]
    load: Callable[[Export], Compute]  # loads what was written, to compare its features with the run's
    usage: Callable[[Export], str]  # lines of Python that load it and compute the features of `images`
    is_graph: bool = False  # whether it holds operations too, so that normalisation can be one of them
    is_own_folder: Callable[[Path], bool] | None = None  # for a format that is a folder: whether a folder is one of it
    card_head: Callable[[Export], str] | None = None  # what comes before the model card
    publisher: Callable[[str], Callable[[Path], str]] | None = None  # checks an address, and returns what uploads to it

    def card_file(self, path: Path) -> Path:
        """Where the model card of an export at `path` goes."""
        return path.with_name(f"{path.name}.md") if self.is_own_folder is None else path / "README.md"

    def may_replace(self, path: Path) -> bool:
        """Whether what is at `path` can be an earlier export: for a file any file, for a folder only such a folder.

        A pipe or a device can not: an export is loaded again, and one that is wrong is removed.
        """
        return path.is_file() or not path.exists() if self.is_own_folder is None else self.is_own_folder(path)


def computing(model: nn.Module) -> Compute:
    """The model as a function, in eval mode and without gradients."""
    import torch

    model.eval()

    @torch.inference_mode()
    def compute(images: Tensor) -> Tensor:
        features: Tensor = model(images)
        return features

    return compute
