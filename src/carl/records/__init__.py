"""What is on the disk, read and written without torch."""
