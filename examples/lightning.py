"""CARL as a LightningModule. Views are made in batches on the device, so the loader only gathers pixels.

Needs `pip install lightning` (or pytorch-lightning). The data come from `carl.open_dataset`, which opens folders too.
"""

from __future__ import annotations

import argparse

import timm
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import carl

try:
    import lightning.pytorch as lightning
except ImportError:
    import pytorch_lightning as lightning


class Pixels(Dataset):
    """Images (H, W, C) uint8 with their positions in the data, which determine the random views."""

    def __init__(self, pixels: object) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.pixels[index].copy()), index


class CARL(lightning.LightningModule):
    """An encoder, a projection head and prototypes, trained with Eq. 7."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], epochs: int, prototypes: int = 100) -> None:
        super().__init__()
        self.encoder = timm.create_model("resnet18", num_classes=0)
        self.head = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128))
        self.prototypes = carl.Prototypes(128, prototypes, embedding_norm="batch", scale=0.088)
        self.views = carl.Views(carl.view_pipeline("simclr", 32), mean, std, seed=0)
        self.criterion = carl.CARLLoss()
        self.epochs = epochs

    def forward(self, images: Tensor) -> Tensor:
        return self.prototypes(self.head(self.encoder(images)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        images, index = batch
        views = self.views(images, index, self.current_epoch)
        weight = carl.lambda_schedule(self.current_epoch, start=4.0, end=2.0, epochs=self.epochs / 2)
        loss = self.criterion(*self(torch.cat(views)).chunk(2), weight)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.06, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", default="shapes")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=-1, help="Stop after this many steps; -1 sets no limit.")
    given = parser.parse_args()
    data = carl.open_dataset(given.data)
    loader = DataLoader(Pixels(data.train.images.pixels), batch_size=128, shuffle=True, drop_last=True)
    model = CARL(data.statistics.mean, data.statistics.std, given.epochs)
    trainer = lightning.Trainer(
        max_epochs=given.epochs, max_steps=given.steps, logger=False, enable_checkpointing=False
    )
    trainer.fit(model, loader)
    torch.save(model.encoder.state_dict(), "encoder.pth")


if __name__ == "__main__":
    main()
