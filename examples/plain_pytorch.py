"""CARL in a plain PyTorch loop, on the built-in images."""

import timm
import torch
from torch import nn

import carl

data = carl.open_dataset("shapes")
encoder = timm.create_model("resnet18", num_classes=0)
head = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128))
model = nn.Sequential(encoder, head, carl.Prototypes(128, 100, embedding_norm="batch", scale=0.088))
views = carl.Views(carl.view_pipeline("simclr", 32), data.statistics.mean, data.statistics.std, seed=0)
criterion, optimizer = carl.CARLLoss(), torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9)
for epoch in range(10):
    weight = carl.lambda_schedule(epoch, start=4.0, end=2.0, epochs=5)
    for index in torch.randperm(len(data.train)).split(128)[:-1]:
        images = torch.from_numpy(data.train.images.gather(index.numpy()))
        loss = criterion(*model(torch.cat(views(images, index, epoch))).chunk(2), weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
