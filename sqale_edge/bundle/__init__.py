"""Bundles: this program, all that it needs and models in one folder or zip, for machines without a network.

    SHA256SUMS           the digest of every other file; its own digest is the bundle's
    bundle.json          what is in it, and for which machines
    install.py           starts the installer, which needs only Python
    sqale_edge_installer/   a copy of `sqale_edge.bundle.installer`
    INSTALL.md           what to do, for a person
    requirements.txt     the wheels with their digests, for pip
    wheels/              this program, every dependency, and pip
    models/NAME/         models as the store has them

What the digests prove: the files are those that SHA256SUMS speaks of. Who wrote SHA256SUMS, they cannot prove: whoever
can change a file of a bundle can write the list anew. So the digest of the list has to reach the other machine in
another way than the bundle.
"""
