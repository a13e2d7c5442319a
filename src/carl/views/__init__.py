"""Random views of images, made in batches on the training device."""
