// A stand-in of libcuda.so.1 in this machine's memory: what our PyCUDA code calls of cuda.h, and counts.
//
// Work is put off until somebody waits for it, and then streams run one after the other, the default
// stream first: the worst that CUDA allows, as far as one thread can tell. Addresses of the device are
// none of the host's. A call that is made to fail does nothing but take back what it was given to free.
// What is not shown: speed, a GPU's memory model, the real driver's own state after an error.

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 100, INVALID_DEVICE,
       INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600 };
enum { MEMORY, CONTEXT, MODULE, STREAM, EVENT, CURRENT, KINDS };
enum { DEVICES = 2, DEEP = 16, MOST = 4096, NAME = 64 };

typedef uint64_t Address;
typedef struct { int retained, modules; } Context;
typedef struct { void *library; Context *in; } Module;
typedef struct { void *stream; int done; } Event;
typedef struct { Address start; size_t size; int freed; Context *in; } Block;
typedef void Launcher(unsigned, unsigned, void *, unsigned long long, int, void *);
typedef struct Work {
    void *stream, *to, *from;  // a copy, of staged bytes too; or a kernel; or an event
    size_t size;
    int staged;
    Launcher *kernel;
    unsigned blocks, threads;
    void *arguments[4];
    Event *event;
    struct Work *next;
} Work;

static const Address FAR = (Address)1 << 60;  // so that the host cannot use a device's address
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Context primary[DEVICES];
static Block blocks[MOST];
static Work *queue;
static int ready, live[KINDS], used_blocks, number, fails_at = -1, code, lost;
static size_t used, room = 1 << 30;
static char names[MOST][NAME];
static __thread Context *stack[DEEP];
static __thread int depth, quiet;

static void *host(Address address) { return (void *)(address - FAR); }

// Counts a call; returns the error that it is made to fail with. The environment can have the form
// "cuInit:100"; code -1 is a crash, -2 a driver that does not answer.
static int enter(const char *name)
{
    if (quiet) return 0;
    const char *wish = getenv("CUDA_STAND_IN");
    const size_t length = strlen(name);
    if (wish && !strncmp(wish, name, length) && wish[length] == ':') {
        const int wanted = atoi(wish + length + 1);
        if (wanted == -1) raise(SIGSEGV);
        if (wanted == -2) sleep(60);
        return wanted;
    }
    const int mine = number++;
    snprintf(names[mine % MOST], NAME, "%s", name);
    return fails_at >= 0 && (mine == fails_at || (lost && mine > fails_at)) ? code : 0;
}

#define CALL(name, arguments, ...) \
    int name arguments { \
        pthread_mutex_lock(&lock); \
        int error = enter(#name); \
        __VA_ARGS__ \
        pthread_mutex_unlock(&lock); \
        return error; \
    }
#define OK if (!error)
#define IN_CONTEXT if (!error && !(error = depth ? 0 : INVALID_CONTEXT))

static Block *block_at(Address start, size_t size)
{
    for (int i = 0; i < used_blocks; ++i)
        if (!blocks[i].freed && start >= blocks[i].start
            && start + size <= blocks[i].start + blocks[i].size) return &blocks[i];
    return NULL;
}

static void add(Work work)
{
    Work **last = &queue;
    while (*last) last = &(*last)->next;
    *last = memcpy(malloc(sizeof work), &work, sizeof work);
}

static void run(void *stream)
{
    for (Work **place = &queue; *place;) {
        Work *work = *place;
        if (work->stream != stream) { place = &work->next; continue; }
        if (work->kernel)
            work->kernel(work->blocks, work->threads, work->arguments[0], (size_t)work->arguments[1],
                         (int)(size_t)work->arguments[2], work->arguments[3]);
        else if (work->event) work->event->done = 1;
        else memcpy(work->to, work->from, work->size);
        if (work->staged) free(work->from);
        *place = work->next;
        free(work);
    }
}

static void run_all(void)
{
    run(NULL);
    while (queue) run(queue->stream);
}

static void forget(Block *block)
{
    block->freed = 1;
    used -= block->size;
    --live[MEMORY];
    free(host(block->start));
}

// What lies in a context ends with it.
static void destroy(Context *context)
{
    run_all();
    live[MODULE] -= context->modules;
    context->modules = 0;
    for (int i = 0; i < used_blocks; ++i)
        if (blocks[i].in == context && !blocks[i].freed) forget(&blocks[i]);
}

// What the tests ask for.

void stand_in_fail(int at, int with, int forever) { fails_at = at, code = with, lost = forever; }
void stand_in_room(size_t bytes) { room = bytes; }
void stand_in_quiet(int on) { quiet = on; }
int stand_in_calls(void) { return number; }
const char *stand_in_call(int i) { return names[i % MOST]; }
int stand_in_live(int kind) { return kind == CURRENT ? depth : live[kind]; }

void stand_in_reset(void)
{
    run_all();
    memset(live, 0, sizeof live);
    memset(primary, 0, sizeof primary);
    ready = depth = number = used_blocks = lost = 0;
    used = 0, room = 1 << 30, fails_at = -1;
}

// Devices and contexts.

CALL(cuInit, (unsigned flags), OK ready = 1;)
CALL(cuDriverGetVersion, (int *version), OK *version = 12040;)
CALL(cuDeviceGetCount, (int *count), OK *count = DEVICES;)
CALL(cuDeviceGet, (int *device, int ordinal), OK {
    if (!ready) error = NOT_INITIALIZED;
    else if (ordinal < 0 || ordinal >= DEVICES) error = INVALID_DEVICE;
    else *device = ordinal;
})
CALL(cuDeviceGetName, (char *name, int size, int device), OK
    snprintf(name, size, "Imaginary GTX %d", device + 1);)
CALL(cuDeviceGetAttribute, (int *value, int which, int device), OK *value = 9;)
CALL(cuDeviceComputeCapability, (int *major, int *minor, int device), OK *major = *minor = 9;)
CALL(cuDeviceTotalMem_v2, (size_t *bytes, int device), OK *bytes = room;)
CALL(cuMemGetInfo_v2, (size_t *free, size_t *total), IN_CONTEXT *free = room - used, *total = room;)

CALL(cuDevicePrimaryCtxRetain, (Context **context, int device), OK {
    *context = &primary[device];
    ++primary[device].retained;
    ++live[CONTEXT];
})
CALL(cuDevicePrimaryCtxRelease_v2, (int device), {
    if (!error && !primary[device].retained) error = INVALID_CONTEXT;
    else {
        --live[CONTEXT];
        if (!--primary[device].retained) destroy(&primary[device]);
    }
})
CALL(cuCtxPushCurrent_v2, (Context *context), OK {
    if (!context->retained) error = INVALID_CONTEXT;
    else stack[depth++] = context;
})
CALL(cuCtxPopCurrent_v2, (Context **context), IN_CONTEXT *context = stack[--depth];)
CALL(cuCtxGetDevice, (int *device), IN_CONTEXT *device = (int)(stack[depth - 1] - primary);)
CALL(cuCtxSynchronize, (void), IN_CONTEXT run_all();)

// Memory and copies.

CALL(cuMemAlloc_v2, (Address *address, size_t size), IN_CONTEXT {
    if (!size || used_blocks == MOST) error = INVALID_VALUE;
    else if (used + size > room) error = OUT_OF_MEMORY;
    else {
        *address = FAR + (Address)memset(malloc(size), 0xA5, size);
        blocks[used_blocks++] = (Block){*address, size, 0, stack[depth - 1]};
        used += size;
        ++live[MEMORY];
    }
})
CALL(cuMemFree_v2, (Address address), {
    Block *block = block_at(address, 1);
    if (!block || block->start != address) error = INVALID_VALUE;
    else {
        run_all();
        forget(block);  // also by a call that is made to fail: it was given back
    }
})
CALL(cuMemcpyHtoD_v2, (Address to, const void *from, size_t size), IN_CONTEXT {
    if (!block_at(to, size)) error = INVALID_VALUE;
    else {
        void *staged = memcpy(malloc(size), from, size);
        run(NULL);
        add((Work){.to = host(to), .from = staged, .size = size, .staged = 1});
    }
})
CALL(cuMemcpyHtoDAsync_v2, (Address to, const void *from, size_t size, void *stream), IN_CONTEXT {
    void *staged = memcpy(malloc(size), from, size);
    add((Work){.to = host(to), .from = staged, .size = size, .staged = 1, .stream = stream});
})
CALL(cuMemcpyDtoH_v2, (void *to, Address from, size_t size), IN_CONTEXT {
    if (!block_at(from, size)) error = INVALID_VALUE;
    else { run(NULL); memcpy(to, host(from), size); }
})
CALL(cuMemcpyDtoHAsync_v2, (void *to, Address from, size_t size, void *stream), IN_CONTEXT {
    if (!block_at(from, size)) error = INVALID_VALUE;
    else add((Work){.to = to, .from = host(from), .size = size, .stream = stream});
})

CALL(cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t size, void *stream), IN_CONTEXT {
    if (!block_at(to, size) || !block_at(from, size)) error = INVALID_VALUE;
    else add((Work){.to = host(to), .from = host(from), .size = size, .stream = stream});
})

// Streams and events.

CALL(cuStreamCreate, (void **stream, unsigned flags), IN_CONTEXT {
    *stream = malloc(1);
    ++live[STREAM];
})
CALL(cuStreamSynchronize, (void *stream), IN_CONTEXT run(stream);)
CALL(cuStreamDestroy_v2, (void *stream), { run(stream); free(stream); --live[STREAM]; })
CALL(cuEventCreate, (Event **event, unsigned flags), IN_CONTEXT {
    *event = calloc(1, sizeof **event);
    ++live[EVENT];
})
CALL(cuEventRecord, (Event *event, void *stream), IN_CONTEXT {
    *event = (Event){stream, 0};
    add((Work){.event = event, .stream = stream});
})
CALL(cuEventQuery, (Event *event), IN_CONTEXT error = event->done ? 0 : NOT_READY;)
CALL(cuEventSynchronize, (Event *event), IN_CONTEXT run(event->stream);)
CALL(cuEventElapsedTime, (float *ms, Event *start, Event *end), IN_CONTEXT {
    *ms = 1;
    if (!start->done || !end->done) error = NOT_READY;
})
CALL(cuEventDestroy_v2, (Event *event), { run(event->stream); free(event); --live[EVENT]; })

// Modules: the image of one is the path of a library, made for the host, with `launch_KERNEL`.

CALL(cuModuleLoadDataEx, (Module **module, const char *image, unsigned count, int *options, void **values), {
    if (count >= 4) values[1] = values[3] = NULL, *(char *)values[2] = 0;  // the logs are empty
    IN_CONTEXT {
        void *library = dlopen(image, RTLD_NOW);
        if (!library) error = INVALID_VALUE;
        else {
            *module = malloc(sizeof **module);
            **module = (Module){library, stack[depth - 1]};
            ++stack[depth - 1]->modules;
            ++live[MODULE];
        }
    }
})
CALL(cuModuleGetFunction, (Launcher **function, Module *module, const char *name), IN_CONTEXT {
    char symbol[NAME];
    snprintf(symbol, NAME, "launch_%s", name);
    *function = (Launcher *)dlsym(module->library, symbol);
    if (!*function) error = NOT_FOUND;
})
CALL(cuModuleUnload, (Module *module), { --module->in->modules; --live[MODULE]; free(module); })
CALL(cuFuncSetBlockShape, (Launcher *function, int x, int y, int z), )
CALL(cuLaunchKernel, (Launcher *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
     unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters, void **extra),
IN_CONTEXT {
    const Address *given = extra[1];  // after CU_LAUNCH_PARAM_BUFFER_POINTER
    const size_t size = *(size_t *)extra[3];  // after CU_LAUNCH_PARAM_BUFFER_SIZE
    const size_t element = size == 32 && given[2] & 1 ? 2 : 4;
    if (size != 32 || gy * gz * by * bz != 1 || !block_at(given[0], given[1] * element)
        || !block_at(given[3], 4)) error = INVALID_VALUE;
    else add((Work){.stream = stream, .kernel = function, .blocks = 2, .threads = 4, .arguments =
        {host(given[0]), (void *)given[1], (void *)(given[2] & 1), host(given[3])}});
})

int cuGetErrorString(int error, const char **text)
{
    *text = error == INVALID_VALUE ? "invalid argument" : error == OUT_OF_MEMORY ? "out of memory"
        : error == NO_DEVICE ? "no CUDA-capable device is detected"
        : error == INVALID_CONTEXT ? "invalid device context" : error == INVALID_HANDLE
        ? "invalid resource handle" : error == 719 ? "unspecified launch failure" : "unknown error";
    return 0;
}
