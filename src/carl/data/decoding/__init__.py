"""Readers of untrusted bytes: image files, TIFF bands, tar archives and the pickles of official data sets."""
