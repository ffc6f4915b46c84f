"""Installs a bundle with nothing but Python: a copy of this package lies in every bundle, beside its `install.py`.

So it imports the standard library and itself, and nothing of the package around it, which uses it as well.

Everything is compared with SHA256SUMS before anything is written, and wheels and models once more while they are
installed. Killed at any instant, the same command starts again: a folder counts as installed only when a file in it
says so, and that is written last.

Not guaranteed: that the bundle is the one that its maker made, unless its digest is compared with what the maker says
it is. Whoever can change a file can change this program, too.
"""
