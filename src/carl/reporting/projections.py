"""Places of the images on the map: two dimensions of the embeddings."""

from __future__ import annotations

import warnings

import numpy as np

from carl.errors import UserError
from carl.records.gallery import Gallery

PROJECTIONS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
PLACES = 10_000  # places along a side of the map: enough for any zoom, short to write
FEWEST = 10  # images under which neighbour embeddings make no sense


def map_places(gallery: Gallery, projection: str) -> np.ndarray:
    """Whole numbers 0..PLACES (N, 2), the shape of the cloud kept; stray points do not squeeze the rest."""
    if projection == "pca" or len(gallery["embeddings"]) < FEWEST:
        points = gallery["positions"].astype(np.float64)
    else:
        points = _tsne(_compact(gallery)) if projection == "tsne" else _umap(_compact(gallery))
    low, high = np.quantile(points, 0.002, axis=0), np.quantile(points, 0.998, axis=0)
    half = np.maximum(0.6 * (high - low), 1e-12)  # beyond a tenth more on either side points are moved to the edge
    centred = np.clip(points - (low + high) / 2, -half, half)
    return np.asarray((centred / (2 * half.max()) + 0.5) * PLACES).round().astype(np.int64)


def _compact(gallery: Gallery) -> np.ndarray:
    """Unit embeddings on their 50 first principal components, as t-SNE's authors begin (van der Maaten 2008)."""
    unit = gallery["embeddings"].astype(np.float32)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    centred = unit - unit.mean(axis=0)
    directions = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :50]
    return np.ascontiguousarray(centred @ directions)


def _tsne(points: np.ndarray) -> np.ndarray:
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError("--map tsne needs scikit-learn; pip install 'carl-ssl[map]' or use --map pca") from None
    perplexity = min(30.0, (len(points) - 1) / 3)  # 30 is scikit-learn's; it must be under the number of points
    return np.asarray(TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points), np.float64)


def _umap(points: np.ndarray) -> np.ndarray:
    try:
        from umap import UMAP
    except ImportError:
        raise UserError("--map umap needs umap-learn; pip install 'carl-ssl[map]' or use --map pca or tsne") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fixed seed makes it use one thread, of which it warns
        return np.asarray(UMAP(random_state=0).fit_transform(points), np.float64)
