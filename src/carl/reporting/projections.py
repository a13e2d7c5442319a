"""Places of the images on the map: two dimensions of the embeddings.

`auto` is t-SNE, which shows groups better than PCA, as far as it takes seconds: of many images, LANDMARKS are laid out
and the others placed between the landmarks that are most like them. A handful of images is laid out by PCA.
"""

from __future__ import annotations

import warnings

import numpy as np

from carl.defaults import PROJECTIONS
from carl.errors import UserError
from carl.records.gallery import Gallery

LANDMARKS = 2500  # images that t-SNE lays out in about ten seconds on one core
BETWEEN = 5  # landmarks that another image is placed between
FEWEST_AUTO = 100  # images from which on t-SNE is worth loading its library
PLACES = 10_000  # places along a side of the map: enough for any zoom, short to write
FEWEST = 10  # images under which neighbour embeddings make no sense


def map_places(gallery: Gallery, projection: str) -> tuple[np.ndarray, str]:
    """Whole numbers 0..PLACES (N, 2) and the layout in words; stray points do not squeeze the rest of the cloud."""
    points, layout = _points(gallery, projection)
    low, high = np.quantile(points, 0.002, axis=0), np.quantile(points, 0.998, axis=0)
    half = np.maximum(0.6 * (high - low), 1e-12)  # beyond a tenth more on either side points are moved to the edge
    centred = np.clip(points - (low + high) / 2, -half, half)
    return np.asarray((centred / (2 * half.max()) + 0.5) * PLACES).round().astype(np.int64), layout


def _points(gallery: Gallery, projection: str) -> tuple[np.ndarray, str]:
    count = len(gallery["embeddings"])
    if projection == "pca" or count < (FEWEST_AUTO if projection == "auto" else FEWEST):
        return gallery["positions"].astype(np.float64), _of_all("pca")
    compact = _compact(gallery)
    if projection == "umap":
        return _umap(compact), _of_all("umap")
    if projection == "tsne" or count <= LANDMARKS:
        return _tsne(compact), _of_all("tsne")
    words = f"t-SNE of the embeddings of {LANDMARKS:,} images; the others lie between those most like them"
    return _by_landmarks(compact), words


def _of_all(projection: str) -> str:
    return f"{PROJECTIONS[projection]} of its embeddings"


def _by_landmarks(points: np.ndarray) -> np.ndarray:
    """t-SNE of some points; each other point at the mean of its nearest landmarks, weighted by nearness."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(points))[:LANDMARKS])
    landmarks = points[chosen]
    laid_out = _tsne(landmarks)
    places = np.empty((len(points), 2))
    squares = (landmarks**2).sum(axis=1)
    for start in range(0, len(points), 1024):
        part = points[start : start + 1024]
        distances = squares - 2 * part @ landmarks.T + (part**2).sum(axis=1, keepdims=True)
        near = np.argpartition(distances, BETWEEN, axis=1)[:, :BETWEEN]
        weights = 1 / np.maximum(np.take_along_axis(distances, near, axis=1), 1e-9)
        places[start : start + 1024] = (laid_out[near] * weights[..., None]).sum(axis=1) / weights.sum(axis=1)[:, None]
    return places  # a landmark is at distance 0 from itself: it stays where t-SNE put it


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
