"""How the shipped policy was made: the corpus of kernels, random walks, imitation, held-out kernels."""
