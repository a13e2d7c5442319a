"""CARL: image encoders from unlabelled images, by consistent assignment of views to prototypes."""

from importlib.metadata import version

__version__ = version("carl-ssl")
