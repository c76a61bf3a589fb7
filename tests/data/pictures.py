"""Pictures, models and declarations that the tests of data make for themselves."""

import numpy as np
from onnx import TensorProto, helper, save_model
from PIL import Image

from trtcal.config import ImagesConfig
from trtcal.model import load_model

PLAIN = ImagesConfig(channels="RGB", layout="NCHW", scale=1.0)


def model_of(path, shape=("n", 3, 8, 8), kind=TensorProto.FLOAT, inputs=("x",)):
    """A model that hands its inputs through."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    ins = [helper.make_tensor_value_info(name, kind, shape) for name in inputs]
    outs = [helper.make_tensor_value_info(f"{name}_out", kind, shape) for name in inputs]
    graph = helper.make_graph(nodes, "test", ins, outs)
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return load_model(path)


def pixels(seed=0, height=8, width=8, channels=3):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def draw(path, seed=0, height=8, width=8, channels=3):
    """Save random pixels without loss and return them."""
    array = pixels(seed, height, width, channels)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return array


def gallery(folder, count=10, **size):
    """A folder of pictures; returns them as the plain declaration makes them, [count, 3, H, W]."""
    drawn = [draw(folder / f"{number:03}.png", number, **size) for number in range(count)]
    return np.stack(drawn).transpose(0, 3, 1, 2).astype(np.float32)


def everything(dataset, size=4, name="x"):
    return np.concatenate([feeds[name] for feeds in dataset.batches(size)])
