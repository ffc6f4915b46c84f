"""The engine on llama.cpp: the only package that imports `llama_cpp`, itself imported only when a model is loaded."""

from sqale_edge.llama.engine import LlamaEngine
from sqale_edge.llama.model import describe_build, read_model_info
from sqale_edge.llama.threads import default_threads

__all__ = ["LlamaEngine", "default_threads", "describe_build", "read_model_info"]
