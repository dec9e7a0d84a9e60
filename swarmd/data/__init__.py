"""Floor 1: corpora, tokenisers and the order of samples. stdlib and numpy, no torch."""
