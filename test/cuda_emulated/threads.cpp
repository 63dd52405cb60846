/* threads.cpp - runs a kernel's blocks one after the other, and the threads of a block as fibers: one runs until it
 * waits at a barrier or ends, then the next. A thread that never waits needs no fiber of its own: the fiber that ran it
 * goes on with the next thread.
 *
 * Every launch runs threads and blocks upwards or downwards, so that a result which depends on their order differs
 * between runs. The caller of lk__emulated_run holds the lock of runtime.cpp: there is one block at a time in the
 * process. */
#include "emulated_internal.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif
#if defined(ADDRESS_SANITIZER)
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3  blockDim, gridDim;

/* From shared.ld; absent where the linker did not use it. */
extern "C" __attribute__((weak)) char lk__emulated_shared_begin[], lk__emulated_shared_end[];

namespace {

enum {
    THREADS = 1024, /* of a block, at most */
    LANES = 32,
    WARPS = THREADS / LANES,
#if defined(ADDRESS_SANITIZER)
    STACK = 512 << 10,
#else
    STACK = 160 << 10, /* bytes, the page that faults included */
#endif
    SPREAD = 32 << 10,
    SHARED = 256 << 10, /* dynamic shared memory, at most: more than any GPU has */
    POISONED_ALWAYS =
        16 << 10, /* bytes of all kernels' variables; poison_shared says what happens where there are more */
    POISONED_BLOCKS = 2,
    POISONED_RUNS = 4,
    POISONED_EVERY = 32,
};

struct fiber {
    void  *stack_pointer; /* while it does not run */
    char  *stack;
    size_t stack_bytes;
    int    thread; /* that it runs */
    fiber *next;   /* in the list that it is in */
    void  *sanitizer;
};

typedef void (*kernel_function)(const void *call);

enum place { NOT_STARTED, RUNS, AT_BLOCK, AT_WARP, ENDED };

struct thread {
    place             state;
    uint3             index;
    fiber            *runs_on;
    lk__emulated_kind kind;
    unsigned          mask;
    int               source, sum;
    uint64_t          value, result;
};

struct block_state {
    const char     *name;
    kernel_function run;
    const void     *call;
    int             threads, started, live, at_block, sum;
    bool            downwards, waited;
    unsigned        live_lanes[WARPS], at_warp[WARPS]; /* bit per lane */
    fiber          *ready, **ready_end;
} b;

thread   threads[THREADS];
fiber    host; /* the caller */
fiber   *current = &host, *previous, *unused;
char    *shared_memory; /* of the block that runs */
char    *shared_pages;
size_t   shared_bytes;
uint64_t launches;
int      fibers; /* that were made */

size_t page_size(void)
{
    static size_t size = (size_t)sysconf(_SC_PAGESIZE);
    return size;
}

char *map_pages(size_t bytes, bool fault_first, bool fault_last)
{
    char *p = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == (char *)MAP_FAILED) {
        perror("cuda emulation: mmap");
        abort();
    }
    if (fault_first) mprotect(p, page_size(), PROT_NONE);
    if (fault_last) mprotect(p + bytes - page_size(), page_size(), PROT_NONE);
    return p;
}

/* ---- switching ---- */

} // namespace

extern "C" {
/* Saves the registers that a call preserves on the stack, the stack pointer in *from, and continues where `to` was
 * saved. */
void lk__emulated_switch(void **from, void *to);
void lk__emulated_fiber_main(void);
}

#if defined(__aarch64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".globl lk__emulated_switch\n"
        ".hidden lk__emulated_switch\n"
        ".type lk__emulated_switch, %function\n"
        "lk__emulated_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size lk__emulated_switch, .-lk__emulated_switch\n");
static void *first_frame(char *top) /* as if it had been saved before the first instruction of the main function */
{
    uint64_t *frame = (uint64_t *)(top - 160);
    memset(frame, 0, 160);
    frame[11] = (uint64_t)(uintptr_t)lk__emulated_fiber_main; /* x30 */
    return frame;
}
#elif defined(__x86_64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".globl lk__emulated_switch\n"
        ".hidden lk__emulated_switch\n"
        ".type lk__emulated_switch, @function\n"
        "lk__emulated_switch:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size lk__emulated_switch, .-lk__emulated_switch\n");
static void *first_frame(char *top)
{
    /* Behind the return address is room for one more: a function's stack pointer is 8 off a multiple of 16 when it
     * begins. */
    uint64_t *frame = (uint64_t *)(top - 64);
    memset(frame, 0, 64);
    frame[6] = (uint64_t)(uintptr_t)lk__emulated_fiber_main;
    return frame;
}
#else
#error "the CUDA emulation switches stacks on arm64 and x86-64 alone"
#endif

namespace {

/* On the stack of `arrived`; the caller's stack is any thread's of the process, so the sanitizer is asked for it. */
void finish_switch(fiber *arrived)
{
#if defined(ADDRESS_SANITIZER)
    const void *bottom;
    size_t      bytes;
    __sanitizer_finish_switch_fiber(arrived->sanitizer, &bottom, &bytes);
    if (previous == &host) host.stack = (char *)bottom, host.stack_bytes = bytes;
#else
    (void)arrived;
#endif
}

void switch_to(fiber *to)
{
    fiber *from = current;
    previous = from;
    current = to;
#if defined(ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(&from->sanitizer, to->stack, to->stack_bytes);
#endif
    lk__emulated_switch(&from->stack_pointer, to->stack_pointer);
    finish_switch(from);
}

fiber *take_fiber(void)
{
    fiber *f = unused;
    if (f) {
        unused = f->next;
        return f;
    }
    f = new fiber();
    f->stack = map_pages(STACK, true, false);
    f->stack_bytes = STACK;
    /* Not all at the same distance from a multiple of a large power of two: they would be in the same few lines of the
     * caches. */
    f->stack_pointer = first_frame(f->stack + STACK - (size_t)(fibers++ * 832 % SPREAD));
    return f;
}

/* ---- who runs next ---- */

void make_ready(int i)
{
    threads[i].state = RUNS;
    fiber *f = threads[i].runs_on;
    f->next = NULL;
    *b.ready_end = f;
    b.ready_end = &f->next;
}

[[noreturn]] void report_deadlock(void)
{
    int  at_block = 0, at_warp = 0, ended = 0, first = -1;
    char text[160] = "";
    for (int i = 0; i < b.threads; i++) {
        at_block += threads[i].state == AT_BLOCK;
        at_warp += threads[i].state == AT_WARP;
        ended += threads[i].state == ENDED;
        if (threads[i].state == AT_WARP && first < 0) first = i;
    }
    if (first >= 0)
        snprintf(text, sizeof text,
                 "; thread %d waits for lanes %08x, of which %08x have arrived and %08x have not ended", first,
                 threads[first].mask, b.at_warp[first / LANES], b.live_lanes[first / LANES]);
    lk__emulated_abort("no thread can go on: of %d threads, %d wait at __syncthreads, %d at a function of their warp, "
                       "and %d have ended%s",
                       b.threads, at_block, at_warp, ended, text);
}

/* The fiber that goes on after the current one waits; it has resumed when this returns. */
void wait_here(void)
{
    fiber *me = current, *next = b.ready;
    b.waited = true;
    if (next) {
        b.ready = next->next;
        if (!b.ready) b.ready_end = &b.ready;
        if (b.ready) { /* a switch waits for the saved registers more than for anything else */
            __builtin_prefetch(b.ready->next);
            for (int i = 0; i < 4; i++) __builtin_prefetch((char *)b.ready->stack_pointer + 64 * i);
        }
    } else if (b.started < b.threads) {
        next = take_fiber();
    } else {
        report_deadlock();
    }
    switch_to(next);
    threadIdx = threads[me->thread].index;
}

void complete_block(void)
{
    for (int i = 0; i < b.threads; i++) {
        if (threads[i].state != AT_BLOCK) continue;
        threads[i].sum = b.sum;
        make_ready(i);
    }
    b.at_block = b.sum = 0;
}

/* Of the lanes that wait together, computes what each receives; all but `self` become ready. */
void complete_warp(int warp, unsigned lanes, int self)
{
    thread  *first = &threads[warp * LANES];
    int      any = __builtin_ctz(lanes);
    unsigned ballot = 0;
    for (unsigned left = lanes; left; left &= left - 1) {
        const thread *t = &first[__builtin_ctz(left)];
        if (t->kind != first[any].kind || t->mask != first[any].mask)
            lk__emulated_abort(
                "threads %d and %d of a warp wait together at different functions or with different masks "
                "(%08x, %08x)",
                warp * LANES + any, (int)(t - threads), first[any].mask, t->mask);
        if (t->value) ballot |= 1u << (t - first);
    }
    for (unsigned left = lanes; left; left &= left - 1) {
        thread *t = &first[__builtin_ctz(left)];
        t->result = 0;
        if (t->kind == LK_EMULATED_BALLOT) t->result = ballot;
        if (t->kind == LK_EMULATED_SHUFFLE) /* of a lane that takes no part: undefined, here NaN */
            t->result = lanes >> t->source & 1 ? first[t->source].value : ~(uint64_t)0;
        if (t->kind == LK_EMULATED_MATCH)
            for (unsigned others = lanes; others; others &= others - 1)
                if (first[__builtin_ctz(others)].value == t->value) t->result |= others & -others;
    }
    b.at_warp[warp] &= ~lanes;
    for (unsigned left = lanes; left; left &= left - 1) {
        int i = warp * LANES + __builtin_ctz(left);
        if (i != self) make_ready(i);
    }
}

/* A thread ended: others may have waited for it alone. */
void end_thread(int i)
{
    int warp = i / LANES;
    threads[i].state = ENDED;
    b.live_lanes[warp] &= ~(1u << i % LANES);
    b.live--;
    if (b.at_block && b.at_block == b.live) complete_block();
    for (unsigned waiting = b.at_warp[warp]; waiting; waiting &= waiting - 1) {
        unsigned need = threads[warp * LANES + __builtin_ctz(waiting)].mask & b.live_lanes[warp];
        if ((b.at_warp[warp] & need) != need) continue;
        complete_warp(warp, need, -1);
        break;
    }
}

/* ---- a block ---- */

__attribute__((no_sanitize("address"))) void poison_variables(size_t bytes)
{
#if defined(ADDRESS_SANITIZER) /* its memset would stop at what it placed between the variables */
    for (size_t i = 0; i < bytes; i++) ((volatile char *)lk__emulated_shared_begin)[i] = (char)0xff;
#else
    memset(lk__emulated_shared_begin, 0xff, bytes);
#endif
}

/* How often each kernel has run. */
std::unordered_map<kernel_function, uint64_t> runs;

/* Before block `number` of `blocks`. All kernels' variables may be megabytes, which take longer to fill than most
 * blocks to run: these are filled before the first blocks and the last one, in a kernel's first runs and some of the
 * later ones. */
void poison_shared(uint64_t number, uint64_t blocks, uint64_t run)
{
    size_t variables = lk__emulated_shared_begin ? (size_t)(lk__emulated_shared_end - lk__emulated_shared_begin) : 0;
    bool   middle = number >= POISONED_BLOCKS && number + 1 < blocks;
    if (number && !b.waited) return; /* without a barrier, no thread can read what another stored */
    memset(shared_memory, 0xff, shared_bytes);
    if (variables > POISONED_ALWAYS && (middle || (run >= POISONED_RUNS && run % POISONED_EVERY))) return;
    poison_variables(variables);
}

void run_block(void)
{
    int   count = b.threads;
    uint3 index = {0, 0, 0};
    bool  waited = b.waited;
    for (int i = 0; i < count; i++) {
        threads[i].state = NOT_STARTED;
        threads[i].index = index;
        if (++index.x == blockDim.x) {
            index.x = 0;
            if (++index.y == blockDim.y) index.y = 0, index.z++;
        }
    }
    for (int i = 0; i * LANES < count; i++) {
        int lanes = count - i * LANES;
        b.live_lanes[i] = lanes >= LANES ? 0xffffffffu : (1u << lanes) - 1;
        b.at_warp[i] = 0;
    }
    b.started = b.at_block = b.sum = 0;
    b.live = count;
    b.ready = NULL;
    b.ready_end = &b.ready;
    b.waited = waited;
    switch_to(take_fiber());
}

void start_thread(int i)
{
    threads[i].state = RUNS;
    threads[i].runs_on = current;
    current->thread = i;
    threadIdx = threads[i].index;
    b.run(b.call);
}

} // namespace

/* Runs threads that have not started; gives way to those that can go on. Never returns. */
void lk__emulated_fiber_main(void)
{
    finish_switch(current);
    for (;;) {
        while (b.started < b.threads && !b.ready) {
            int i = b.downwards ? b.threads - 1 - b.started : b.started;
            b.started++;
            start_thread(i);
            end_thread(i);
        }
        fiber *next = b.ready;
        if (next) {
            b.ready = next->next;
            if (!b.ready) b.ready_end = &b.ready;
        } else if (b.live) {
            report_deadlock();
        } else {
            next = &host;
        }
        current->next = unused;
        unused = current;
        switch_to(next);
    }
}

void lk__emulated_run(const char *name, dim3 grid, dim3 block, size_t shared, void (*run)(const void *call),
                      const void *call)
{
    static const char *const order = getenv("LK_CUDA_EMULATED_ORDER");
    uint64_t number = 0, blocks = (uint64_t)grid.x * grid.y * grid.z, mixed = (launches++ + 1) * 0x9E3779B97F4A7C15u;
    int      directions = order && *order ? atoi(order) : (int)(mixed >> 62);
    size_t   used = (shared + 15) / 16 * 16;
    if (!shared_pages) shared_pages = map_pages(SHARED + page_size(), false, true);
    shared_memory = shared_pages + SHARED - used;
    shared_bytes = used;
    b.name = name;
    b.run = run;
    b.call = call;
    b.threads = (int)(block.x * block.y * block.z);
    b.downwards = directions & 1;
    b.waited = false;
    uint64_t before = runs[run]++;
    blockDim = block;
    gridDim = grid;
    for (; number < blocks; number++) {
        uint64_t i = directions & 2 ? blocks - 1 - number : number;
        blockIdx = {(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y), (unsigned)(i / grid.x / grid.y)};
        poison_shared(number, blocks, before);
        run_block();
    }
    b.name = NULL;
}

/* ---- what kernels call ---- */

void *lk__emulated_shared(void) { return shared_memory; }

int lk__emulated_lane(void) { return current->thread % LANES; }

unsigned lk__emulated_live_lanes(void) { return b.live_lanes[current->thread / LANES]; }

int lk__emulated_block_barrier(int value)
{
    int i = current->thread;
    b.waited = true;
    b.sum += value;
    if (b.at_block + 1 == b.live) {
        int sum = b.sum;
        complete_block();
        return sum;
    }
    threads[i].state = AT_BLOCK;
    b.at_block++;
    wait_here();
    return threads[i].sum;
}

uint64_t lk__emulated_warp(lk__emulated_kind kind, unsigned mask, uint64_t value, int source)
{
    int     i = current->thread, warp = i / LANES;
    thread *t = &threads[i];
    if (!(mask >> i % LANES & 1)) lk__emulated_abort("thread %d is not in its own mask %08x", i, mask);
    t->kind = kind;
    t->mask = mask;
    t->value = value;
    t->source = source;
    b.waited = true;
    unsigned arrived = b.at_warp[warp] |= 1u << i % LANES, need = mask & b.live_lanes[warp];
    if ((arrived & need) == need) {
        complete_warp(warp, need, i);
        return t->result;
    }
    t->state = AT_WARP;
    wait_here();
    return t->result;
}

void lk__emulated_abort(const char *format, ...)
{
    va_list list;
    if (b.name)
        fprintf(stderr, "cuda emulation: kernel %s, block (%u, %u, %u) of (%u, %u, %u): ", b.name, blockIdx.x,
                blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z);
    else
        fprintf(stderr, "cuda emulation: ");
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    abort();
}
