"""Floor 1: corpora, tokenisers and the order of samples. stdlib and numpy, no torch.

The command line hashes a corpus without loading torch; the compute worker of a first stage reads
samples from it.

    sources     documents, in one order on every machine, and their content hash
    tokeniser   bytes to token ids
    packing     documents -> two token files in the cache, written once, checked when opened
    order       which sample comes when: a permutation that needs no memory
    corpus      all of it together: the samples of a micro-batch
"""

INSTALL_HINT = (
    "install it, or in a checkout all of them: "
    "`.venv/bin/pip install -c constraints.txt -e '.[data]'`"
)
"""Where an optional package is missing. The project is on no package index, so its name alone
would install something else or nothing."""
