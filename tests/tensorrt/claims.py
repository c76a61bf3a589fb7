"""Every attribute of TensorRT that we touch, and the versions that we say have it.

`TOUCHED` is compared with the sources in the ordinary suite, and with real packages by
`make test-tensorrt`: there an attribute must be where it is claimed, and nowhere else.
"""

EVERYWHERE = ("8.6", "10.16", "11.4", "rtx")
TO_10 = ("8.6", "10.16")
RTX = ("rtx",)
FROM_10 = ("10.16", "11.4", "rtx")

TOUCHED = {
    "BuilderFlag": EVERYWHERE,
    "BuilderFlag.INT8": TO_10,
    "BuilderFlag.OBEY_PRECISION_CONSTRAINTS": TO_10,
    "BuilderFlag.PREFER_PRECISION_CONSTRAINTS": TO_10,
    "ComputeCapability": RTX,
    "ComputeCapability.__members__": RTX,
    "DataType": EVERYWHERE,
    "DataType.FLOAT": EVERYWHERE,
    "DataType.HALF": EVERYWHERE,
    "DataType.INT8": EVERYWHERE,
    "EngineInspector.get_engine_information": EVERYWHERE,
    "IBuilderConfig": EVERYWHERE,
    "IBuilderConfig.builder_optimization_level": EVERYWHERE,
    "IConstantLayer": EVERYWHERE,
    "IConstantLayer.weights": EVERYWHERE,
    "ICudaEngine.create_engine_inspector": EVERYWHERE,
    "IInt8EntropyCalibrator": TO_10,
    "IInt8EntropyCalibrator2": TO_10,
    "IInt8LegacyCalibrator": TO_10,
    "IInt8MinMaxCalibrator": TO_10,
    "ILayer": EVERYWHERE,
    "ILayer.get_input": EVERYWHERE,
    "ILayer.get_output": EVERYWHERE,
    "ILayer.name": EVERYWHERE,
    "ILayer.num_outputs": EVERYWHERE,
    "ILayer.precision": TO_10,
    "ILayer.type": EVERYWHERE,
    "ILogger": EVERYWHERE,
    "ILogger.Severity": EVERYWHERE,
    "ILogger.Severity.ERROR": EVERYWHERE,
    "ILogger.Severity.INFO": EVERYWHERE,
    "ILogger.Severity.INTERNAL_ERROR": EVERYWHERE,
    "ILogger.Severity.VERBOSE": EVERYWHERE,
    "ILogger.Severity.WARNING": EVERYWHERE,
    "INetworkDefinition.get_input": EVERYWHERE,
    "INetworkDefinition.get_layer": EVERYWHERE,
    "INetworkDefinition.num_inputs": EVERYWHERE,
    "INetworkDefinition.num_layers": EVERYWHERE,
    "IPluginV2.get_capability_interface": (),
    "IPluginV2.plugin_type": EVERYWHERE,
    "IPluginV2.plugin_version": EVERYWHERE,
    "IPluginV2Layer": EVERYWHERE,
    "IPluginV2Layer.plugin": EVERYWHERE,
    "IPluginV3Layer": FROM_10,
    "IProfiler": EVERYWHERE,
    "ITensor": EVERYWHERE,
    "ITensor.dtype": EVERYWHERE,
    "ITensor.is_shape_tensor": EVERYWHERE,
    "ITensor.name": EVERYWHERE,
    "ITensor.set_dynamic_range": TO_10,
    "LayerInformationFormat": EVERYWHERE,
    "LayerInformationFormat.JSON": EVERYWHERE,
    "MemoryPoolType": EVERYWHERE,
    "MemoryPoolType.WORKSPACE": EVERYWHERE,
    "NetworkDefinitionCreationFlag": EVERYWHERE,
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED": FROM_10,
    "PluginCapabilityType": FROM_10,
    "PluginCapabilityType.CORE": FROM_10,
    "ProfilingVerbosity": EVERYWHERE,
    "ProfilingVerbosity.DETAILED": EVERYWHERE,
    "ProfilingVerbosity.LAYER_NAMES_ONLY": EVERYWHERE,
    "ProfilingVerbosity.NONE": EVERYWHERE,
    "__version__": EVERYWHERE,
    "init_libnvinfer_plugins": EVERYWHERE,
}

THROUGH_POLYGRAPHY = {
    "Builder.build_serialized_network": EVERYWHERE,
    "Builder.create_builder_config": EVERYWHERE,
    "Builder.create_network": EVERYWHERE,
    "BuilderFlag.FP16": TO_10,
    "IBuilderConfig.int8_calibrator": TO_10,
    "IBuilderConfig.profiling_verbosity": EVERYWHERE,
    "IBuilderConfig.set_calibration_profile": TO_10,
    "IBuilderConfig.set_flag": EVERYWHERE,
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH": TO_10,
}

CLAIMS = TOUCHED | THROUGH_POLYGRAPHY
