// CUDA's words for a host compiler, so that the kernels run unchanged on a CPU.
//
// The threads of a block are threads; blocks come one after the other, and a block's shared memory is
// static, with what the last block left there. Atomics and barriers are the host's own: what is not
// shown is the GPU's memory model.

#include <barrier>
#include <thread>
#include <vector>

#define __global__
#define __device__ static
#define __shared__ static

struct uint4 {
    unsigned x, y, z, w;
};
struct Index {
    unsigned x;
};

static thread_local Index threadIdx;
static Index blockIdx, blockDim, gridDim;
static std::barrier<> *block_barrier;

static void __syncthreads() { block_barrier->arrive_and_wait(); }

static int __clz(int word) { return __builtin_clz((unsigned)word); }

static unsigned atomicAdd(unsigned *place, unsigned more)
{
    return __atomic_fetch_add(place, more, __ATOMIC_RELAXED);
}

static unsigned atomicCAS(unsigned *place, unsigned expected, unsigned wanted)
{
    __atomic_compare_exchange_n(
        place, &expected, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

static void atomicMin(int *place, int other)
{
    int before = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (other < before && !__atomic_compare_exchange_n(
        place, &before, other, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static void atomicMax(int *place, int other)
{
    int before = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (other > before && !__atomic_compare_exchange_n(
        place, &before, other, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

template <class Kernel, class... Arguments>
static void launch(Kernel kernel, unsigned blocks, unsigned threads, Arguments... arguments)
{
    blockDim.x = threads;
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        std::barrier barrier((std::ptrdiff_t)threads);
        block_barrier = &barrier;
        std::vector<std::thread> running;
        for (unsigned thread = 0; thread < threads; ++thread)
            running.emplace_back([=] {
                threadIdx.x = thread;
                kernel(arguments...);
            });
        for (auto &thread : running) thread.join();
    }
}

#define LAUNCHER(kernel)                                                                          \
    extern "C" void launch_##kernel(unsigned blocks, unsigned threads, const void *values,        \
                                    unsigned long long elements, int fp16, unsigned *words)       \
    {                                                                                             \
        launch(kernel, blocks, threads, values, elements, fp16, words);                           \
    }
