"""CARL: image encoders from unlabelled images, by consistent assignment of views to prototypes.

The names below are the public ones; they are imported when they are first used, so that `import carl` is instant.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carl.api import CARLLoss, pretrain
    from carl.data.sources import open_dataset
    from carl.data.views import Views
    from carl.data.views import pipeline as view_pipeline
    from carl.errors import UserError
    from carl.evaluation.knn import knn_accuracy
    from carl.evaluation.logistic import linear_probe
    from carl.inference.trained import load_encoder
    from carl.models.heads import Prototypes
    from carl.optim import lambda_schedule
    from carl.prior import prior_threshold

__version__ = version("carl-ssl")

__all__ = [
    "CARLLoss",
    "Prototypes",
    "UserError",
    "Views",
    "__version__",
    "knn_accuracy",
    "lambda_schedule",
    "linear_probe",
    "load_encoder",
    "open_dataset",
    "pretrain",
    "prior_threshold",
    "view_pipeline",
]

_HOMES = {  # public name: module, and its name there
    "CARLLoss": ("carl.api", "CARLLoss"),
    "Prototypes": ("carl.models.heads", "Prototypes"),
    "UserError": ("carl.errors", "UserError"),
    "Views": ("carl.data.views", "Views"),
    "knn_accuracy": ("carl.evaluation.knn", "knn_accuracy"),
    "lambda_schedule": ("carl.optim", "lambda_schedule"),
    "linear_probe": ("carl.evaluation.logistic", "linear_probe"),
    "load_encoder": ("carl.inference.trained", "load_encoder"),
    "open_dataset": ("carl.data.sources", "open_dataset"),
    "pretrain": ("carl.api", "pretrain"),
    "prior_threshold": ("carl.prior", "prior_threshold"),
    "view_pipeline": ("carl.data.views", "pipeline"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'carl' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
