/* A libnvidia-ml.so.1 that plays the GPUs of a text file, named by FAKE_NVML_SCRIPT.
 *
 * The file holds sections "[gpu]" and "[mig]" (an instance of the gpu above it) of key=value lines. A query
 * whose key is absent answers NOT_SUPPORTED; "error.KEY=N" answers error N; "lost_after=N" takes the GPU off
 * the bus after N utilisation queries. Only what the sampler calls is here; signatures follow nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, LOST = 15 };
enum { MAX_DEVICES = 16, MAX_KEYS = 48, MAX_TEXT = 160 };

typedef struct device {
    int is_mig, keys, utilization_calls;
    struct device *parent;
    unsigned long long counter;
    char key[MAX_KEYS][MAX_TEXT], value[MAX_KEYS][MAX_TEXT];
} device_t;

static device_t devices[MAX_DEVICES];
static int device_count;

static const char *find(device_t *device, const char *key, int from) {
    for (int i = from; i < device->keys; i++)
        if (!strcmp(device->key[i], key)) return device->value[i];
    return NULL;
}

static int is_lost(device_t *device) {
    device_t *physical = device->parent ? device->parent : device;
    const char *after = find(physical, "lost_after", 0);
    return after && physical->utilization_calls > atoi(after);
}

/* The value of a key, or the error to answer with. */
static int get(device_t *device, const char *key, const char **value) {
    char name[MAX_TEXT];
    if (is_lost(device)) return LOST;
    snprintf(name, sizeof name, "error.%s", key);
    if ((*value = find(device, name, 0))) return atoi(*value);
    *value = find(device, key, 0);
    return *value ? OK : NOT_SUPPORTED;
}

static int get_number(device_t *device, const char *key, unsigned int *out) {
    const char *value;
    int code = get(device, key, &value);
    if (code == OK) *out = (unsigned int)strtoul(value, NULL, 0);
    return code;
}

static int get_text(device_t *device, const char *key, char *out, unsigned int size) {
    const char *value;
    int code = get(device, key, &value);
    if (code == OK) snprintf(out, size, "%s", value);
    return code;
}

int nvmlInitWithFlags(unsigned int flags) {
    char line[2 * MAX_TEXT];
    device_t *device = NULL, *physical = NULL;
    const char *path = getenv("FAKE_NVML_SCRIPT");
    FILE *file = path ? fopen(path, "r") : NULL;
    (void)flags;
    if (!file) return DRIVER_NOT_LOADED;
    device_count = 0;
    memset(devices, 0, sizeof devices);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        if (!strcmp(line, "[gpu]") || !strcmp(line, "[mig]")) {
            device = &devices[device_count++];
            device->is_mig = line[1] == 'm';
            if (device->is_mig) device->parent = physical; else physical = device;
        } else if (device && device->keys < MAX_KEYS && strchr(line, '=')) {
            char *equal = strchr(line, '=');
            *equal = 0;
            snprintf(device->key[device->keys], MAX_TEXT, "%.*s", MAX_TEXT - 1, line);
            snprintf(device->value[device->keys++], MAX_TEXT, "%.*s", MAX_TEXT - 1, equal + 1);
        }
    }
    fclose(file);
    return OK;
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    static char text[32];
    if (code == NOT_SUPPORTED) return "Not Supported";
    if (code == LOST) return "GPU is lost";
    if (code == DRIVER_NOT_LOADED) return "Driver Not Loaded";
    snprintf(text, sizeof text, "Error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned int size) { snprintf(out, size, "550.54.15"); return OK; }
int nvmlSystemGetNVMLVersion(char *out, unsigned int size) { snprintf(out, size, "12.550.54.15"); return OK; }

static device_t *nth(int mig, device_t *parent, unsigned int index) {
    for (int i = 0; i < device_count; i++)
        if (devices[i].is_mig == mig && devices[i].parent == parent && index-- == 0) return &devices[i];
    return NULL;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = 0;
    while (nth(0, NULL, *count)) ++*count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t **out) {
    return (*out = nth(0, NULL, index)) ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceGetMigMode(device_t *device, unsigned int *current, unsigned int *pending) {
    int code = get_number(device, "mig_mode", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned int *count) { (void)device; *count = 7; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned int index, device_t **out) {
    return (*out = nth(1, device, index)) ? OK : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(device_t *device, unsigned int *out) { return get_number(device, "gpu_instance", out); }
int nvmlDeviceGetUUID(device_t *device, char *out, unsigned int size) { return get_text(device, "uuid", out, size); }
int nvmlDeviceGetName(device_t *device, char *out, unsigned int size) { return get_text(device, "name", out, size); }

typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *out) {
    memset(out, 0, sizeof *out);
    return get_text(device, "bus", out->bus_id, sizeof out->bus_id);
}

typedef struct { unsigned int gpu, memory; } utilization_t;
int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *out) {
    const char *value;
    (device->parent ? device->parent : device)->utilization_calls++;
    int code = get(device, "utilization", &value);
    if (code == OK) sscanf(value, "%u,%u", &out->gpu, &out->memory);
    return code;
}

typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *out) {
    const char *value;
    int code = get(device, "memory", &value);
    if (code == OK) { sscanf(value, "%llu,%llu", &out->used, &out->total); out->free = out->total - out->used; }
    return code;
}

int nvmlDeviceGetPowerUsage(device_t *device, unsigned int *out) { return get_number(device, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(device_t *device, unsigned int *out) { return get_number(device, "power_limit", out); }
int nvmlDeviceGetTemperature(device_t *device, int sensor, unsigned int *out) {
    (void)sensor;
    return get_number(device, "temperature", out);
}
int nvmlDeviceGetClockInfo(device_t *device, int kind, unsigned int *out) {
    return get_number(device, kind == 1 ? "sm_clock" : "mem_clock", out);
}
int nvmlDeviceGetMaxClockInfo(device_t *device, int kind, unsigned int *out) {
    return get_number(device, kind == 1 ? "sm_clock_max" : "mem_clock_max", out);
}
int nvmlDeviceGetCurrPcieLinkGeneration(device_t *device, unsigned int *out) { return get_number(device, "pcie_gen", out); }
int nvmlDeviceGetMaxPcieLinkGeneration(device_t *device, unsigned int *out) { return get_number(device, "pcie_gen_max", out); }
int nvmlDeviceGetCurrPcieLinkWidth(device_t *device, unsigned int *out) { return get_number(device, "pcie_width", out); }
int nvmlDeviceGetMaxPcieLinkWidth(device_t *device, unsigned int *out) { return get_number(device, "pcie_width_max", out); }
int nvmlDeviceGetPcieThroughput(device_t *device, int counter, unsigned int *out) {
    return get_number(device, counter == 1 ? "pcie_rx_rate" : "pcie_tx_rate", out);
}

static int throttle(device_t *device, const char *key, unsigned long long *out) {
    unsigned int bits;
    int code = get_number(device, key, &bits);
    if (code == OK) *out = bits;
    return code;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(device_t *device, unsigned long long *out) { return throttle(device, "throttle", out); }
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t *device, unsigned long long *out) { return throttle(device, "throttle", out); }

typedef struct { unsigned int pid; unsigned long long memory; unsigned int gpu_instance, compute_instance; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned int *count, process_t *out) {
    unsigned int found = 0;
    const char *value;
    if (is_lost(device)) return LOST;
    if (find(device, "error.process", 0)) return atoi(find(device, "error.process", 0));
    for (int i = 0; i < device->keys; i++) {
        if (strcmp(device->key[i], "process")) continue;
        value = device->value[i];
        if (out && found < *count) { memset(&out[found], 0, sizeof *out); out[found].pid = (unsigned int)atoi(value); }
        found++;
    }
    int small = found > 0 && (!out || found > *count);
    *count = found;
    return small ? INSUFFICIENT_SIZE : OK;
}

typedef union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; long long sll; } value_t;
typedef struct { unsigned int id, scope; long long timestamp, latency; int type; int code; value_t value; } field_t;
int nvmlDeviceGetFieldValues(device_t *device, int count, field_t *fields) {
    const char *value;
    for (int i = 0; i < count; i++) {
        fields[i].code = get(device, fields[i].id == 198 ? "pcie_rx_bytes" : fields[i].id == 197 ? "pcie_tx_bytes" : "?", &value);
        if (fields[i].code == LOST) return LOST;
        fields[i].type = 3;
        if (fields[i].code == OK) fields[i].value.ull = strtoull(value, NULL, 0) + (device->counter += 1000);
    }
    return OK;
}

#ifndef OLD_DRIVER
typedef struct { unsigned int version, supported; } gpm_support_t;
typedef struct { unsigned int id; int code; double value; const char *names[3]; } gpm_metric_t;
typedef struct { device_t *device; int instance; } gpm_sample_t;
typedef struct { unsigned int version, count; gpm_sample_t *first, *second; gpm_metric_t metrics[333]; } gpm_request_t;

int nvmlGpmQueryDeviceSupport(device_t *device, gpm_support_t *out) {
    const char *value;
    int code = get(device, "gpm", &value);
    out->supported = code == OK;
    return code == LOST ? LOST : OK;
}
int nvmlGpmSampleAlloc(gpm_sample_t **out) { *out = calloc(1, sizeof **out); return OK; }
int nvmlGpmSampleFree(gpm_sample_t *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(device_t *device, gpm_sample_t *sample) {
    if (is_lost(device)) return LOST;
    sample->device = device;
    sample->instance = -1;
    return OK;
}
int nvmlGpmMigSampleGet(device_t *device, unsigned int instance, gpm_sample_t *sample) {
    int code = nvmlGpmSampleGet(device, sample);
    sample->instance = (int)instance;
    return code;
}
int nvmlGpmMetricsGet(gpm_request_t *request) {
    if (request->first == request->second || !request->first->device) return INVALID_ARGUMENT;
    for (unsigned int i = 0; i < request->count; i++) {
        char key[MAX_TEXT];
        const char *value;
        snprintf(key, sizeof key, request->second->instance < 0 ? "gpm.%u" : "gpm.%u.gi%d", request->metrics[i].id, request->second->instance);
        request->metrics[i].code = get(request->second->device, key, &value);
        if (request->metrics[i].code == OK) request->metrics[i].value = atof(value);
    }
    return OK;
}
#endif
