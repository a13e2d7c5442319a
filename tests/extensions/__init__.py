"""One toy of each kind of feature, as someone outside of the package would write it: one file each."""
