"""CARL: image encoders from unlabelled images, by consistent assignment of views to prototypes.

The names below are the public ones; they are imported when they are first used, so that `import carl` is instant.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carl.api import pretrain
    from carl.data.open import open_dataset
    from carl.errors import UserError
    from carl.evaluation.logistic import linear_probe
    from carl.evaluation.neighbours import knn_accuracy
    from carl.methods.carl import CARLLoss
    from carl.methods.prior import prior_threshold
    from carl.models.heads import Prototypes
    from carl.optim import lambda_schedule
    from carl.use.encoder import load_encoder
    from carl.use.group import group
    from carl.views.recipes import pipeline as view_pipeline
    from carl.views.views import Views

__version__ = version("carl-ssl")

__all__ = [
    "CARLLoss",
    "Prototypes",
    "UserError",
    "Views",
    "__version__",
    "group",
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
    "CARLLoss": ("carl.methods.carl", "CARLLoss"),
    "Prototypes": ("carl.models.heads", "Prototypes"),
    "UserError": ("carl.errors", "UserError"),
    "Views": ("carl.views.views", "Views"),
    "group": ("carl.use.group", "group"),
    "knn_accuracy": ("carl.evaluation.neighbours", "knn_accuracy"),
    "lambda_schedule": ("carl.optim", "lambda_schedule"),
    "linear_probe": ("carl.evaluation.logistic", "linear_probe"),
    "load_encoder": ("carl.use.encoder", "load_encoder"),
    "open_dataset": ("carl.data.open", "open_dataset"),
    "pretrain": ("carl.api", "pretrain"),
    "prior_threshold": ("carl.methods.prior", "prior_threshold"),
    "view_pipeline": ("carl.views.recipes", "pipeline"),
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
