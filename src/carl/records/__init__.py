"""What is on the disk, read and written without torch: run directories, weights, metrics and galleries."""
