// Counts a tensor's values in the bins of counting.py. SHIFT and BINS are defined in front of this.
//
// Everything is done in integers on the values' bit patterns: no denormal can become zero, and no
// fp16 is rounded. Behind the counts of the bins lie the numbers of zeros, NaN, +Inf and -Inf, the
// lowest and highest key of the finite values, and what `count_nonzero` counts.

typedef unsigned long long Size;

#define ZEROS BINS
#define LOW (BINS + 4)
#define HIGH (BINS + 5)
#define NONZERO (BINS + 6)
#define MAGNITUDE 0x7FFFFFFFu
#define INFINITE 0x7F800000u
#define SLOT_BITS 12  // 32 KiB of a block's own memory: more needs a kernel attribute
#define SLOTS (1 << SLOT_BITS)
#define NO_BIN 0xFFFFFFFFu

// The float32 pattern of the same value. A denormal fp16's leading bit becomes the hidden one.
__device__ unsigned widened(unsigned fp16)
{
    const unsigned sign = (fp16 & 0x8000u) << 16, magnitude = fp16 & 0x7FFFu;
    if (magnitude >= 0x7C00u) return sign | INFINITE | (magnitude & 0x3FFu) << 13;
    if (magnitude >= 0x0400u) return sign | ((magnitude << 13) + (112u << 23));
    if (magnitude == 0) return sign;
    const int leading = 31 - __clz((int)magnitude);
    return sign | (((unsigned)(leading + 102) << 23) + (magnitude << (23 - leading)));
}

// Calls `visit` with the pattern of every element, 16 bytes at a time where the address allows it.
template <class Visit>
__device__ void each(const void *values, Size elements, int fp16, Visit visit)
{
    const Size first = (Size)blockIdx.x * blockDim.x + threadIdx.x;
    const Size step = (Size)gridDim.x * blockDim.x;
    const Size in_vector = fp16 ? 8 : 4;
    const Size vectors = (Size)values % 16 ? 0 : elements / in_vector;
    for (Size i = first; i < vectors; i += step) {
        const uint4 vector = ((const uint4 *)values)[i];
        const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
        for (int j = 0; j < 4; ++j) {
            visit(fp16 ? widened(words[j] & 0xFFFFu) : words[j]);
            if (fp16) visit(widened(words[j] >> 16));
        }
    }
    for (Size i = vectors * in_vector + first; i < elements; i += step)
        visit(fp16 ? widened(((const unsigned short *)values)[i]) : ((const unsigned *)values)[i]);
}

// Adds one to a bin: in the block's own memory if the bin has the slot there, else in the device's.
// A slot belongs to the first bin that comes, so frequent bins are likely to have theirs, and the
// threads of a block do not queue for them at one address with all the others.
__device__ void add(unsigned bin, unsigned *owners, unsigned *hits, unsigned *counts)
{
    const unsigned slot = bin * 2654435761u >> (32 - SLOT_BITS);
    unsigned owner = *(volatile unsigned *)&owners[slot];
    if (owner == NO_BIN) {
        owner = atomicCAS(&owners[slot], NO_BIN, bin);
        if (owner == NO_BIN) owner = bin;
    }
    if (owner == bin) atomicAdd(&hits[slot], 1u);  // two calls: each compiles to its own memory's
    else atomicAdd(&counts[bin], 1u);
}

extern "C" __global__ void count_values(const void *values, Size elements, int fp16, unsigned *counts)
{
    __shared__ unsigned owners[SLOTS], hits[SLOTS], numbers[4];
    __shared__ int lowest, highest;
    for (unsigned slot = threadIdx.x; slot < SLOTS; slot += blockDim.x) {
        owners[slot] = NO_BIN;
        hits[slot] = 0;
    }
    if (threadIdx.x == 0) {
        numbers[0] = numbers[1] = numbers[2] = numbers[3] = 0;
        lowest = 0x7FFFFFFF;
        highest = -lowest - 1;
    }
    __syncthreads();

    unsigned zeros = 0, nan = 0, positive = 0, negative = 0;
    int low = 0x7FFFFFFF, high = -low - 1;
    each(values, elements, fp16, [&](unsigned pattern) {
        const unsigned magnitude = pattern & MAGNITUDE;
        if (magnitude < INFINITE) {
            const int key = magnitude == 0 ? 0 : (int)(pattern >> 31 ? ~magnitude : magnitude);
            low = key < low ? key : low;
            high = key > high ? key : high;
            if (magnitude == 0) ++zeros;
            else add(pattern >> SHIFT, owners, hits, counts);
        } else if (magnitude > INFINITE) ++nan;
        else if (pattern >> 31) ++negative;
        else ++positive;
    });
    atomicAdd(&numbers[0], zeros);
    atomicAdd(&numbers[1], nan);
    atomicAdd(&numbers[2], positive);
    atomicAdd(&numbers[3], negative);
    atomicMin(&lowest, low);
    atomicMax(&highest, high);
    __syncthreads();

    for (unsigned slot = threadIdx.x; slot < SLOTS; slot += blockDim.x)
        if (hits[slot]) atomicAdd(&counts[owners[slot]], hits[slot]);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 4; ++i) atomicAdd(&counts[ZEROS + i], numbers[i]);
        atomicMin((int *)&counts[LOW], lowest);
        atomicMax((int *)&counts[HIGH], highest);
    }
}

// Counts the finite values that are not zero.
extern "C" __global__ void count_nonzero(const void *values, Size elements, int fp16, unsigned *counts)
{
    __shared__ unsigned number;
    if (threadIdx.x == 0) number = 0;
    __syncthreads();
    unsigned mine = 0;
    each(values, elements, fp16, [&](unsigned pattern) {
        const unsigned magnitude = pattern & MAGNITUDE;
        mine += magnitude > 0 && magnitude < INFINITE;
    });
    atomicAdd(&number, mine);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&counts[NONZERO], number);
}
