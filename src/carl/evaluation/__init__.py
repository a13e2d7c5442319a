"""How good is the encoder, and how do the prototypes fare? These functions work on plain arrays."""

from carl.evaluation.cluster import compare_clusters
from carl.evaluation.knn import knn_accuracy, knn_scores
from carl.evaluation.logistic import linear_probe
from carl.evaluation.metrics import measure_accuracy

__all__ = ["compare_clusters", "knn_accuracy", "knn_scores", "linear_probe", "measure_accuracy"]
