"""Values that a user gets without asking, and limits, for the help, the configuration and the code. Imports no carl.

Only those stand here that more than one part must know. Any other value is at home where it is used.
"""

from __future__ import annotations

from typing import Literal, get_args

METHOD = "carl"
BACKBONE = "resnet18"  # the paper's

Stem = Literal["imagenet", "small"]
STEMS: tuple[Stem, ...] = get_args(Stem)
STEM: Stem = "imagenet"

Labels = Literal["auto", "folders", "none"]
LABELS: tuple[Labels, ...] = get_args(Labels)

Precision = Literal["fp32", "bf16", "fp16"]  # to compute in
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
EMBEDDING_DTYPES = ("float32", "float16")  # of the numbers that `carl embed` writes

EPOCHS, BATCH_SIZE = 200, 256  # paper, appendix A
FEWEST_EPOCHS = 10  # on a CPU, however large the data are
SHAPES_EPOCHS, SHAPES_BATCH_SIZE = 8, 128  # minutes on a CPU
SEED = 0
LARGEST_SEED = 2**63 - 1  # that all generators of random numbers take
PROBES = 20  # of a run, about
MOST_PRIOR_EPOCHS = 100  # E of Eq. 8; paper, appendix A

LARGEST_USUAL_SIDE = 96  # for photos; a random crop with 8% of the area is then still 27 pixels wide
AS_IS_SIDE = 256  # pixels; larger images are always scaled down, because thousands of them may wait in memory
FEATURE_BATCH = 128  # images through a frozen encoder at once: so `carl embed` gives the features that are evaluated
LARGEST_SIDE = 4096  # pixels; an encoder needs gigabytes for a single view of this size
MOST_CLASSES = 2**16  # of any data set; an image's label may come from a stranger's file
LANES = 64  # parts of a stream read at the same time, at most, unless there are more processes
BAD_ONE_IN, BAD_AT_LEAST = 20, 10  # files that may be undecodable: one in so many, and so many in any case

KNN_NEIGHBOURS = 20  # the number that counts, of the probe and of `carl eval`
KNN_TEMPERATURE = 0.1  # lightly's; Wu et al. 2018 use 0.07

ADAPT = "adapt"  # the preset for an encoder that exists
ADAPT_METHOD = "simclr"  # with `--init`: of those that have the preset, what gains most (results/adapt/README.md)
ADAPTED_IMAGES = 6000  # seen in a run of it: most of what an encoder gains, it gains in the first fifty steps
ADAPT_BATCH_SIZE = 128
COMPARED = "robust"  # the preset of `carl compare`: it shares views, head and rate among all methods

# What may stand for ENCODER, in the help and in errors.
ENCODERS = "a run directory, a weights file with --backbone, or a pretrained model such as timm:tf_efficientnet_lite0"
DEVICES = "auto, cpu, cuda, cuda:N, mps or xpu"
RANDOM = "random"  # in place of a run: an encoder with random weights
SCALES = ("smoke", "cpu", "paper")  # of `carl reproduce`
PROJECTIONS = {"auto": "t-SNE", "pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}  # for --map, with their names in pages
