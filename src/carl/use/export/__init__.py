"""An encoder in the formats of other programs."""
