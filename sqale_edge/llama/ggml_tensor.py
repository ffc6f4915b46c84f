"""ggml's `struct ggml_tensor`, as far as an evaluation callback reads it.

Mirrored by hand, so it is right for the tested version of llama.cpp alone; `bindings` lets no other one run.
Source: ggml/include/ggml.h of ggml-org/llama.cpp.
"""

from __future__ import annotations

import ctypes

F32 = 0  # Source: enum ggml_type
MUL_MAT, MUL_MAT_ID = 29, 30  # Source: enum ggml_op


class GgmlTensor(ctypes.Structure):
    """One node of a graph, or one of its sources.

    `ne` counts elements and `nb` bytes, the fastest axis first.
    """


_Pointer = ctypes.POINTER(GgmlTensor)
GgmlTensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", _Pointer * 10),
    ("view_src", _Pointer),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
]
