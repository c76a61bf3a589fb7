// A stand-in of libnvidia-ml.so.1: one GPU, whose answers the tests choose. Nothing of it measures.

#include <stdio.h>
#include <string.h>

enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

unsigned long long energy_mj, reasons;
unsigned power_mw, clock_mhz, processes;
int has_energy = 1;
static int device;

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle)
{
    *handle = &device;
    return strcmp(bus, "0000:01:00.0") ? NOT_FOUND : 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    snprintf(text, size, "550.54.15");
    return 0;
}

#define ANSWER(name, type, value, works) \
    int name(void *handle, type *answer) \
    { \
        if (handle != &device) return INVALID_ARGUMENT; \
        *answer = value; \
        return works ? 0 : NOT_SUPPORTED; \
    }

ANSWER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj, has_energy)
ANSWER(nvmlDeviceGetPowerUsage, unsigned, power_mw, power_mw)
ANSWER(nvmlDeviceGetEnforcedPowerLimit, unsigned, 350500, 1)
ANSWER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons, 1)

int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *answer)
{
    *answer = clock_mhz;
    return handle == &device && kind == 1 ? 0 : INVALID_ARGUMENT;  // the multiprocessors'
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, void *list)
{
    *count = processes;
    return list || handle != &device ? INVALID_ARGUMENT : processes ? INSUFFICIENT_SIZE : 0;
}
