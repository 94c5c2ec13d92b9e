// What NCCL's transport for verbs takes of the rest of NCCL and of CUDA, without plug-ins and without a GPU.

#include <cstdlib>

#include "cuda_runtime.h"

cudaError_t cudaGetDevice(int *) { return cudaErrorNotSupported; }

void ncclInitEnv() {}
bool ncclEnvPluginInitialized() { return true; }
const char *ncclEnvPluginGetEnv(const char *name) { return std::getenv(name); }
