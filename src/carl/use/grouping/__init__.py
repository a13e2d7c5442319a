"""Groups of images found on features that are already there: points, neighbours, heads, and how many groups."""
