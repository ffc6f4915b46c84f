"""The model store: models are downloaded, converted or added, checked and removed here; `installed` reads it.

Every change of a model is made by one process at a time, aside, and shows at once when it is complete: a kill at any
instant leaves the model as it was or as it is to be. This is the only package that opens a connection, and only for
`pull`, and for `add` where a known model lacks its training prompt.
"""
