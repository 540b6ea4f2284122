"""HDF5 files of flat tables."""
