"""How attention runs: our kernels on a GPU, compiled C or the kernels' references on a CPU."""
