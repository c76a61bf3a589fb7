"""Write small networks of TensorFlow and Keras into a folder, with what they give for some inputs.

Run as a program: TensorFlow stays out of the process of the tests.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

SHAPE = 12, 12, 3


def write_network(folder):
    """Write one network as Keras', TensorFlow's and TFLite's files, and its outputs."""
    keras.utils.set_random_seed(0)
    image = keras.Input(SHAPE, name="image")
    value = keras.layers.Conv2D(4, 3, use_bias=False, name="stem")(image)
    value = keras.layers.BatchNormalization(name="norm")(value)
    value = keras.layers.LeakyReLU(name="leaky")(value)
    value = keras.layers.GlobalAveragePooling2D(name="pool")(value)
    scores = keras.layers.Dense(5, name="scores")(value)
    model = keras.Model(image, scores)
    model.save(folder / "net.keras")
    model.export(folder / "net", format="tf_saved_model", verbose=False)
    lite = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    (folder / "net.tflite").write_bytes(lite)
    images = np.random.default_rng(0).normal(size=(6, *SHAPE)).astype(np.float32)
    np.savez(folder / "expected.npz", image=images, scores=model.predict(images, verbose=0))


def write_programs(folder):
    """Write models that hold programs, and one that names a class of its author."""
    image = keras.Input(SHAPE, name="image")
    wrapped = keras.layers.Lambda(lambda value: value * 2.0, output_shape=SHAPE)(image)
    keras.Model(image, wrapped).save(folder / "lambda.keras")

    class Own(keras.layers.Layer):
        def call(self, value):
            return value + 1.0

    keras.Model(image, Own()(image)).save(folder / "own.keras")


class Writer(tf.Module):
    """Writes a file wherever it is run."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def __call__(self, x):
        tf.io.write_file(self.path, "was here")
        return {"y": x + 1.0}


class Several(tf.Module):
    """Has two functions, neither of which is the default."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def first(self, x):
        return {"y": x + 1.0}

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def second(self, x):
        return {"y": x * 2.0}


class Reader(tf.Module):
    """Reads a file without an operator that has a state."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def __call__(self, x):
        return {"y": x + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32)}


class Resource(tf.saved_model.experimental.TrackableResource):
    """Writes a file when it is loaded."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def _create_resource(self):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])

    def _initialize(self):
        tf.io.write_file(self.path, "was here")


class Loader(tf.Module):
    """Has a resource; its function is harmless."""

    def __init__(self, path):
        super().__init__()
        self.resource = Resource(path)
        _ = self.resource.resource_handle

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def __call__(self, x):
        return {"y": x + 1.0}


def hide_functions(path):
    """Leave those that write files out of the list of a SavedModel's functions."""
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString(path.read_bytes())
    graph = model.meta_graphs[0]
    for function in graph.graph_def.library.function:
        if any(node.op == "WriteFile" for node in function.node_def):
            del graph.object_graph_def.concrete_functions[function.signature.name]
    path.write_bytes(model.SerializeToString())


def write_modules(folder):
    """Write SavedModels of functions: one writes a file, one reads one, one has no default."""
    for name, module in (("writer", Writer(str(folder / "written"))), ("reader", Reader())):
        tf.saved_model.save(module, str(folder / name), signatures=module.__call__)
    for name in ("loader", "hidden"):
        loader = Loader(str(folder / "loaded"))
        tf.saved_model.save(loader, str(folder / name), signatures=loader.__call__)
    hide_functions(folder / "hidden" / "saved_model.pb")
    (folder / "loaded").unlink(missing_ok=True)
    several = Several()
    functions = {"first": several.first, "second": several.second}
    tf.saved_model.save(several, str(folder / "several"), signatures=functions)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_network(place)
    write_programs(place)
    write_modules(place)
