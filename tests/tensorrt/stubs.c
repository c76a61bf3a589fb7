/* What TensorRT's Python packages must find to be imported where its libraries are not installed:
   functions that make nothing, under the names that the packages search. */
void *createInferBuilder_INTERNAL(void) { return 0; }
void *createInferRefitter_INTERNAL(void) { return 0; }
void *createInferRuntime_INTERNAL(void) { return 0; }
void *createNvOnnxParser_INTERNAL(void) { return 0; }
void *createNvOnnxParserRefitter_INTERNAL(void) { return 0; }
void *getBuilderPluginRegistry(void) { return 0; }
void *getPluginRegistry(void) { return 0; }
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void) { return 0; }
