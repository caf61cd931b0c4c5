/* simulator/simulator.h: the functions of libhipkittens_simulator.so besides the HIP driver API. Plain C.
   SPDX-License-Identifier: MIT

   The library exports the functions of hip/hip_functions.def with HIP's own ABI. Its devices are simulated: device 0 is
   a gfx942 (MI300X, 304 CUs), device 1 a gfx950 (MI355X, 256 CUs). Guest addresses are host addresses. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory a launch may touch, with its name in error messages. */
typedef struct {
    const void* begin;
    uint64_t bytes;
    const char* name;
    int writable;
    uint32_t unwritten; /* not 0: initcheck treats a dword of this value as never written */
} HipkittensRegion;

/* hipModuleLaunchKernel with HIP_LAUNCH_PARAM_BUFFER, restricted to exactly these regions (and the code object's own).
   hipModuleLaunchKernel itself allows everything that hipMalloc returned and hipHostRegister registered. */
int hipkittens_launch_bounded(void* function, const unsigned int grid[3], const unsigned int block[3],
                              unsigned int shared_bytes, void* stream, const void* arguments,
                              size_t argument_bytes, const HipkittensRegion* regions, size_t region_count);

/* A launch of hipkittens_launch_bounded, as its caller passed it. */
typedef struct {
    const char* kernel;
    int target;
    const unsigned int* grid;
    const unsigned int* block;
    unsigned int shared_bytes;
    const void* arguments;
    size_t argument_bytes;
    const HipkittensRegion* regions;
    size_t region_count;
} HipkittensObservedLaunch;
/* From now on (null: no longer) `observer` is called with every such launch of the process before it starts, in the launching
   thread, so that a tool can repeat it. If it returns 0 the launch runs; otherwise the launch is skipped and counts as done. */
void hipkittens_set_launch_observer(int (*observer)(const HipkittensObservedLaunch* launch));

/* The functions with which a launch lets a host language handle signals; those of Python's C API can be used. */
typedef struct {
    int (*enter)(void);               /* PyGILState_Ensure */
    void (*leave)(int);               /* PyGILState_Release */
    int (*run_signal_handlers)(void); /* PyErr_CheckSignals: not 0 if a handler raised */
    void (*take_error)(void** kind, void** value, void** trace); /* PyErr_Fetch */
} HipkittensInterpreter;
/* From now on every launch of the process's main thread that takes longer than 50 ms runs signal handlers twenty times a second.
   If one raises, the launch fails with hipErrorLaunchFailure and keeps the exception. Other threads never call `enter`. */
void hipkittens_set_interpreter(const HipkittensInterpreter* interpreter);
/* For the main thread: 1 and the exception, which the caller then owns; or 0. */
int hipkittens_take_interruption(void* error[3]);

/* The calling thread is about to end the process. From now on a launch of any other thread does not return: a host language
   that is shutting down could not resume the thread. */
void hipkittens_process_is_ending(void);

/* Settings for later launches of the calling thread. Values: see simulator/machine/settings.h. */
typedef struct {
    int arithmetic;   /* 0 fast, 1 strict, 2 exact */
    int host_level;   /* -1 best, 0 portable, 1 avx2, 2 avx512, 3 avx512_bf16, 4 amx */
    uint32_t threads; /* 0: one per core */
    uint64_t wave_order_seed;
    int poison;
    int count_lds_conflicts;
    uint64_t instruction_limit;
    uint32_t wave_turn;
    uint32_t workgroups_side_by_side;
    uint32_t checks; /* sum of 1 memcheck, 2 racecheck, 4 initcheck, 8 synccheck, 16 notes */
    /* A load through a buffer descriptor that reaches past the memory of the launch, as in many third-party kernels:
       0 ends the launch; 1 continues, the bytes past the end read as 0, and memcheck reports descriptor_overread. */
    int tolerate_overreads;
} HipkittensSettings;
void hipkittens_get_settings(HipkittensSettings* settings);
int hipkittens_set_settings(
    const HipkittensSettings* settings); /* 0, or hipErrorInvalidValue with the reason in last_error */
/* Settings per process instead of per thread: the torch operators call hipkittens_apply_process_settings before a simulated
   launch, since autograd launches from its own threads. It applies them to the calling thread. Setting them does so too, and
   is rejected under the same conditions as hipkittens_set_settings. */
void hipkittens_get_process_settings(HipkittensSettings* settings);
int hipkittens_set_process_settings(const HipkittensSettings* settings);
void hipkittens_apply_process_settings(void);
int hipkittens_best_host_level(void);

/* The devices of this process appear, and launches run, as one of `count` equal partitions: 1, 2, 4 or 8 of them in the partition
   modes SPX, DPX, QPX and CPX. While launches are modelled leave it at 1: the model's parameters determine the partition. */
int hipkittens_set_partitions(int count);
int hipkittens_partitions(void);

/* The full text of the calling thread's last failure: kernel, workgroup, wave, lane, instruction, address, nearest region. */
const char* hipkittens_last_error(void);

/* The checkers' findings in all launches of this process since the last clear: a JSON array. Returns its length without
   the final 0; writes as much as fits into `size` bytes. */
size_t hipkittens_findings(char* text, size_t size);
void hipkittens_clear_findings(void);
/* All findings of this process, including cleared ones; kept only under HIPKITTENS_CHECKS or HIPKITTENS_CHECKS_FILE. */
size_t hipkittens_kept_findings(char* text, size_t size);

/* Counters of the calling thread's last launch. */
typedef struct {
    uint64_t instructions, workgroups, waves;
    uint64_t mfma_instructions, valu_instructions, salu_instructions, lds_instructions,
        vector_memory_instructions;
    uint64_t other_instructions;
    uint64_t lds_conflict_cycles;
    double seconds;
} HipkittensReport;
void hipkittens_last_report(HipkittensReport* report);
/* Wave instructions of all launches of the calling thread so far, since an operation may launch several kernels. */
uint64_t hipkittens_instructions_so_far(void);

/* A record of a launch, instruction by instruction. Off until enabled; then launches of all threads are recorded, in the
   order in which they end. */
typedef struct {
    uint64_t executions; /* by waves */
    uint64_t bytes;      /* between lanes and tensors */
    uint64_t lds_conflict_cycles;
    uint32_t address;                      /* from the start of the code object's text */
    uint32_t unit;                         /* isa::Unit */
    uint32_t vm_in_flight, lgkm_in_flight; /* s_waitcnt: the largest counters on reaching it */
} HipkittensInstructionRecord;
typedef struct {
    const char* name;
    uint64_t bytes_loaded, bytes_stored; /* by lanes; a byte that is accessed twice is one distinct byte */
    uint64_t distinct_bytes_loaded, distinct_bytes_stored;
} HipkittensRegionRecord;
typedef struct {
    const char* kernel;
    int target;
    HipkittensReport report;
    const HipkittensRegionRecord* regions; /* all the launch may touch except its arguments and code */
    size_t region_count;
    const HipkittensInstructionRecord* instructions; /* those that were executed, by address */
    size_t instruction_count;
    const uint32_t* trace; /* on = 2: each wave's memory events, wave by wave in its own order */
    size_t trace_words;
    const uint64_t* digests; /* on = 3: one per wave, in the order of workgroups */
    size_t digest_count;
} HipkittensLaunchRecord;
/* 0 off, 1 on, 2 on with a trace, 3 on with digests; turning it on discards earlier records. A digest is one number for the addresses
   of all instructions that a wave executed and for what each read from registers. A trace consists of events: linear workgroup << 8 | wave;
   address of the instruction; kind << 16 | count; bytes per lane; `count` LDS addresses. Kinds: 0 s_barrier, 1 s_waitcnt,
   2 vector memory, 3 vector memory to LDS, 4 LDS (read2 and write2 have an event for each half; only recorded with
   count_lds_conflicts). */
void hipkittens_record_launches(int on);
size_t hipkittens_recorded_launches(void);
/* Returns 0, or hipErrorInvalidValue. The record stays valid until the next hipkittens_record_launches(1). */
int hipkittens_recorded_launch(size_t index, HipkittensLaunchRecord* record);

/* Sets how many bytes the process may use to keep the most recently used translations of kernels; the default is 512 MiB. A
   translation that was dropped is made again by the next launch. Returns the previous limit. */
uint64_t hipkittens_limit_kept_programs(uint64_t bytes);
uint64_t hipkittens_kept_program_bytes(void);

/* 1: later launches of this process are validated as usual, and then described instead of run, and earlier descriptions are
   discarded; 0: they run. */
void hipkittens_describe_launches(int on);
/* The launches described, a JSON array of kernel, grid and block (workgroups, work-items), dynamic_lds_bytes and arguments: words of 8
   bytes in hexadecimal digits, or "tensor N+BYTES" for an address, tensors numbered in the order in which arguments name them. Two
   launches of the same work have the same description. Returns its length, like hipkittens_findings. */
size_t hipkittens_described_launches(char* text, size_t size);

/* The cycle model: from hipkittens_time_launches on, every launch of this process is replayed in a model of `device` (MI300X,
   MI308X, MI325X for gfx942; MI350X, MI355X for gfx950) and kept as a report. All its figures are modelled, none is measured. */
typedef struct {
    const char* device;
    double clock_mhz; /* of the chip; 0: what its power allows under the launch's matrix load */
    int full;         /* 1: all XCDs in detail; 0: XCD 0, and the others' loads and stores in step with it */
    uint32_t timeline_compute_units; /* of XCD 0, whose every instruction is recorded as an event; 0: none */
    int values; /* 0: skip values that neither control flow nor addresses need; results are then not written */
    const char* const*
        names; /* parameters of simulator/timing/parameters.def to override, and their values */
    const double* overrides;
    size_t override_count;
    int skip_others; /* launches for another target, and checked ones: 1 run without a report, 0 are refused */
} HipkittensTiming;
/* Null ends it. Returns 0, or hipErrorInvalidValue with the reason in last_error. Discards earlier reports. */
int hipkittens_time_launches(const HipkittensTiming* timing);
/* JSON array of the reports, in the order in which the launches ended. Returns its length without the final 0; writes as
   much as fits into `size` bytes. */
size_t hipkittens_timed_launches(char* text, size_t size);
/* The number of launches that ran without a report since hipkittens_time_launches, because of skip_others. */
size_t hipkittens_skipped_launches(void);
/* The events of those compute units, in the order in which each SIMD issued them; clocks of details_at_clock_mhz. */
typedef struct {
    double begin;
    float duration; /* of its unit; for a wave: from its start to its end */
    float stalled;  /* clocks that the wave waited for it */
    float latency;  /* memory: clocks until its wait counter is decremented */
    uint32_t address, workgroup;
    uint16_t compute_unit, lds_conflicts;
    uint8_t simd, wave; /* wave: within its workgroup */
    uint8_t is_wave;    /* 1: the lifetime of a wave, without an instruction */
    uint8_t unit;       /* isa::Unit */
    uint32_t stall;     /* index into the report's stall_names */
} HipkittensTimelineEvent;
/* The events of the launch with this index in hipkittens_timed_launches; valid until the next hipkittens_time_launches. */
const HipkittensTimelineEvent* hipkittens_timeline(size_t launch, size_t* count);
/* JSON: every parameter of a device with its unit and source. Returns 0 if there is no device with this name. */
size_t hipkittens_timing_parameters(const char* device, char* text, size_t size);

/* Text of the instruction at bytes[0]. target: 942 or 950. Returns its length in bytes, 0 if it is not an instruction. */
int hipkittens_disassemble(int target, const uint8_t* bytes, size_t size, char* text, size_t text_size);

/* Lists the instructions in a piece of code: `visit` is called once for every distinct mnemonic (`.long` for bytes that are
   not an instruction) with the name of its row, the number of instructions with it, and how many of those the simulator
   implements. Returns 0, or an error whose text is in last_error. */
typedef void (*HipkittensVisitMnemonic)(void* context, const char* mnemonic, const char* row, uint64_t count,
                                        uint64_t implemented);
int hipkittens_survey(int target, const uint8_t* code, size_t size, HipkittensVisitMnemonic visit,
                      void* context);

/* The code objects of one of clang's offload bundles, plain or compressed: `visit` is called once for each with its entry's name, which
   ends in the processor, and with bytes that are valid only during the call. The host's entry is not visited. Returns 0, or an error
   whose text is in last_error: hipErrorInvalidImage if the file is not such a bundle. */
typedef void (*HipkittensVisitCodeObject)(void* context, const char* name, const uint8_t* code_object,
                                          size_t size);
int hipkittens_bundled_code_objects(const uint8_t* file, size_t size, HipkittensVisitCodeObject visit,
                                    void* context);

/* The bf16 matrix products in the steps of a code object, as a host with AVX-512-BF16 or AMX runs them: how many there are,
   and in how many runs with nothing between them. Returns 0, or an error whose text is in last_error: hipErrorNotSupported
   on another host. */
int hipkittens_product_runs(const uint8_t* code_object, size_t size, uint64_t* products, uint64_t* runs);

#ifdef __cplusplus
}
#endif
