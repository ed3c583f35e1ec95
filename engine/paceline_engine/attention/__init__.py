"""How attention runs: our kernels on a GPU, compiled C or torch on a CPU."""
