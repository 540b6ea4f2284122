"""Layers in C++ for the CPU, built where there is a compiler; torch computes them elsewhere."""
