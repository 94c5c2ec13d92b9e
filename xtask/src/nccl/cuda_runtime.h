// The parts of CUDA that NCCL's transport for verbs names, for a machine without CUDA.

#pragma once

#include <cstddef>
#include <cstdint>

// Before the driver's functions are looked up one by one.
#define CUDART_VERSION 11000
#define __host__
#define __device__

enum cudaError_t { cudaSuccess = 0, cudaErrorNotSupported = 801 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };
enum { cudaHostAllocMapped = 2, cudaStreamNonBlocking = 1 };
enum { cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
struct cudaIpcMemHandle_t {
  char reserved[64];
};
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef int CUmemAllocationHandleType;
struct int4 {
  int x, y, z, w;
};
struct ulong2 {
  unsigned long x, y;
};

const char *cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int *);
cudaError_t cudaDeviceGetAttribute(int *, cudaDeviceAttr, int);
cudaError_t cudaDeviceGetPCIBusId(char *, int, int);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *);
cudaError_t cudaHostAlloc(void *, size_t, unsigned);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaHostRegister(void *, size_t, unsigned);
cudaError_t cudaHostGetDevicePointer(void *, void *, unsigned);
cudaError_t cudaHostUnregister(void *);
cudaError_t cudaMalloc(void *, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamDestroy(cudaStream_t);

extern CUmemAllocationHandleType ncclCuMemHandleType;
