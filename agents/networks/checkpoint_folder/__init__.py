"""Decoders as folders of `config.json` and safetensors, as `transformers` reads and writes them.

Folders of the Llama and Qwen3 families. Tensors are read slice by slice onto a mesh, and written
layer by layer: no host holds a whole stack of layers.
"""

from .configs import read_config as read_config
from .reading import read as read
from .writing import write as write
