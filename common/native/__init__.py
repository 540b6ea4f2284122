"""Code in C++, built on the user's machine where there is a compiler; Python computes the same elsewhere."""
