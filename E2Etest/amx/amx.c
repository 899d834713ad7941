/* AMX in user space, for processors that have CPUID faulting and AVX-512 but no AMX: a library for LD_PRELOAD.

   CPUID faults, and the handler of SIGSEGV answers it with AMX added. The kernel's interface for the permission to use
   tiles is answered in the process. Tile instructions raise SIGILL, whose handler computes what Intel's manual (volume
   2, chapters 3 to 5, "AMX") defines. Each thread has tiles of its own. See README.md. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <immintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012, ARCH_GET_XCOMP_SUPP = 0x1021, ARCH_GET_XCOMP_PERM, ARCH_REQ_XCOMP_PERM };
enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };
static const uint32_t TILE_STATE = 3u << 17;

struct tile {
    uint8_t rows;
    uint16_t row_bytes;
    uint8_t data[ROWS][ROW_BYTES] __attribute__((aligned(64)));
};

static __thread struct tile tiles[TILES] __attribute__((aligned(64), tls_model("initial-exec")));
static __thread uint8_t configuration[64] __attribute__((tls_model("initial-exec")));
static struct sigaction others[65]; /* what the program has set for SIGILL and SIGSEGV */
static long executed;

static long call(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static long set_cpuid(long allowed) { return call(SYS_arch_prctl, ARCH_SET_CPUID, allowed, 0, 0, 0, 0); }

/* The registers of the interrupted thread. */

static greg_t *general(ucontext_t *context, unsigned number) {
    static const int place[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return &context->uc_mcontext.gregs[place[number]];
}

static void answer_cpuid(ucontext_t *context) {
    uint32_t leaf = *general(context, 0), sub = *general(context, 1), a, b, c, d;
    set_cpuid(1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(sub));
    set_cpuid(0);
    if (leaf == 0 && a < 0x1e) a = 0x1e;
    if (leaf == 7 && sub == 0) d |= 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    if (leaf == 0xd && sub == 0) a |= TILE_STATE;
    if (leaf == 0x1d || leaf == 0x1e) a = b = c = d = 0;
    if (leaf == 0x1d && sub == 0) a = 1; /* the last palette */
    if (leaf == 0x1d && sub == 1) {
        a = TILES * ROWS * ROW_BYTES | ROWS * ROW_BYTES << 16;
        b = ROW_BYTES | TILES << 16;
        c = ROWS;
    }
    if (leaf == 0x1e && sub == 0) b = 16 | 64 << 8; /* maxk, maxn */
    *general(context, 0) = a, *general(context, 1) = c, *general(context, 2) = d, *general(context, 3) = b;
}

/* Instructions. Each returns whether the processor would execute it; where not, it raises #UD. */

static int is_configured(const struct tile *tile) { return configuration[0] == 1 && tile->rows && tile->row_bytes; }

static void release(void) {
    memset(tiles, 0, sizeof tiles);
    memset(configuration, 0, sizeof configuration);
}

static int load_configuration(const uint8_t *from) {
    if (from[0] > 1) return 0;
    release();
    if (from[0] == 0) return 1;
    memcpy(configuration, from, sizeof configuration);
    for (int i = 0; i < TILES; i++) {
        memcpy(&tiles[i].row_bytes, from + 16 + 2 * i, 2);
        tiles[i].rows = from[48 + i];
        if (tiles[i].rows > ROWS || tiles[i].row_bytes > ROW_BYTES) return 0;
    }
    return 1;
}

static int load(struct tile *tile, const uint8_t *from, int64_t stride) {
    if (!is_configured(tile)) return 0;
    memset(tile->data, 0, sizeof tile->data);
    for (int row = 0; row < tile->rows; row++) memcpy(tile->data[row], from + row * stride, tile->row_bytes);
    return 1;
}

static int store(const struct tile *tile, uint8_t *to, int64_t stride) {
    if (!is_configured(tile)) return 0;
    for (int row = 0; row < tile->rows; row++) memcpy(to + row * stride, tile->data[row], tile->row_bytes);
    return 1;
}

/* Whether c (m, n) += a (m, k) b (k, n) has fitting shapes. What lies beyond c's columns is zeroed by the product. */
static int fit(const struct tile *c, const struct tile *a, const struct tile *b) {
    if (!is_configured(c) || !is_configured(a) || !is_configured(b) || a == b || a == c || b == c) return 0;
    if (c->row_bytes % 4 || a->row_bytes % 4 || b->row_bytes % 4) return 0;
    return a->rows == c->rows && b->row_bytes == c->row_bytes && a->row_bytes / 4 == b->rows;
}

static int multiply_bf16(struct tile *c, const struct tile *a, const struct tile *b) {
    if (!fit(c, a, b)) return 0;
    const __m512i odd = _mm512_set1_epi32((int)0xffff0000);
    const __mmask16 columns = (__mmask16)((1u << c->row_bytes / 4) - 1);
    unsigned before = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* numbers below the normal ones are zero, before and after; no exceptions; round to nearest */
    for (int m = 0; m < c->rows; m++) {
        __m512 even_sum = _mm512_setzero_ps(), odd_sum = _mm512_setzero_ps();
        for (int k = 0; k < a->row_bytes / 4; k++) {
            __m512i left = _mm512_set1_epi32(((const int *)a->data[m])[k]), right = _mm512_load_si512(b->data[k]);
            even_sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(left, 16)),
                                       _mm512_castsi512_ps(_mm512_slli_epi32(right, 16)), even_sum);
            odd_sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(left, odd)),
                                      _mm512_castsi512_ps(_mm512_and_si512(right, odd)), odd_sum);
        }
        __m512 sum = _mm512_add_ps(_mm512_load_ps(c->data[m]), _mm512_add_ps(even_sum, odd_sum));
        _mm512_store_ps(c->data[m], _mm512_maskz_mov_ps(columns, sum));
    }
    _mm_setcsr(before);
    return 1;
}

static int multiply_bytes(struct tile *c, const struct tile *a, const struct tile *b, int a_signed, int b_signed) {
    if (!fit(c, a, b)) return 0;
    for (int m = 0; m < c->rows; m++)
        for (int n = 0; n < c->row_bytes / 4; n++) {
            uint32_t sum = ((uint32_t *)c->data[m])[n];
            for (int k = 0; k < a->row_bytes / 4; k++)
                for (int i = 0; i < 4; i++) {
                    uint8_t left = a->data[m][4 * k + i], right = b->data[k][4 * n + i];
                    sum += (a_signed ? (int8_t)left : left) * (b_signed ? (int8_t)right : right);
                }
            ((uint32_t *)c->data[m])[n] = sum;
        }
    return 1;
}

/* The address of the operand in memory; `stride`: the index of a tile's rows. Moves `code` behind it. */
static uint8_t *address(ucontext_t *context, const uint8_t **code, unsigned base_high, unsigned index_high,
                        int64_t *stride, const uint8_t *end_of_opcode) {
    uint8_t modrm = *end_of_opcode, mode = modrm >> 6;
    const uint8_t *at = end_of_opcode + 1;
    unsigned base = modrm & 7;
    int64_t place = 0, index = 0;
    int32_t offset = 0;
    int relative = mode == 0 && base == 5, without_base = 0;
    if (base == 4) {
        uint8_t sib = *at++;
        unsigned number = (sib >> 3 & 7) | index_high << 3;
        base = sib & 7;
        without_base = mode == 0 && base == 5;
        if (number != 4) index = *general(context, number) << (sib >> 6);
    }
    if (mode == 1) offset = (int8_t)*at++;
    if (mode == 2 || relative || without_base) memcpy(&offset, at, 4), at += 4;
    if (relative) place = (int64_t)at;
    else if (!without_base) place = *general(context, base | base_high << 3);
    if (stride) *stride = index;
    else place += index;
    *code = at;
    return (uint8_t *)(place + offset);
}

/* Execute the tile instruction at `*code` and move behind it; false where it is none. */
static int execute(ucontext_t *context, const uint8_t **code) {
    enum { NONE, H66, F3, F2 };
    const uint8_t *at = *code;
    unsigned index_high = 0, base_high = 0, payload;
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2) return 0; /* VEX of three bytes, map 0F38 */
    index_high = !(at[1] & 0x40), base_high = !(at[1] & 0x20), payload = at[2];
    if (payload & 0x84) return 0; /* W1 or 256 bits */
    unsigned prefix = payload & 3, third = ~payload >> 3 & 15, modrm = at[4];
    int in_memory = modrm >> 6 != 3;
    struct tile *reg = &tiles[modrm >> 3 & 7], *rm = &tiles[modrm & 7], *vvvv = &tiles[third & 7];
    const uint8_t *next = at + 5;
    int64_t stride;
    int done = 0;
    if (at[3] == 0x49 && in_memory && prefix == NONE)
        done = load_configuration(address(context, &next, base_high, index_high, NULL, at + 4));
    else if (at[3] == 0x49 && in_memory && prefix == H66)
        memcpy(address(context, &next, base_high, index_high, NULL, at + 4), configuration, 64), done = 1;
    else if (at[3] == 0x49 && modrm == 0xc0 && prefix == NONE)
        release(), done = 1;
    else if (at[3] == 0x49 && !in_memory && prefix == F2 && is_configured(reg))
        memset(reg->data, 0, sizeof reg->data), done = 1;
    else if (at[3] == 0x4b && in_memory && (modrm & 7) == 4 && prefix != NONE) {
        uint8_t *memory = address(context, &next, base_high, index_high, &stride, at + 4);
        done = prefix == F3 ? store(reg, memory, stride) : load(reg, memory, stride);
    } else if (at[3] == 0x5c && !in_memory && prefix == F3)
        done = multiply_bf16(reg, rm, vvvv);
    else if (at[3] == 0x5e && !in_memory)
        done = multiply_bytes(reg, rm, vvvv, prefix >= F3, prefix == H66 || prefix == F2);
    if (done) *code = next, __atomic_add_fetch(&executed, 1, __ATOMIC_RELAXED);
    return done;
}

static void to_the_program(int number, siginfo_t *info, void *context) {
    struct sigaction *own = &others[number];
    if (own->sa_flags & SA_SIGINFO) own->sa_sigaction(number, info, context);
    else if (own->sa_handler != SIG_DFL && own->sa_handler != SIG_IGN) own->sa_handler(number);
    else {
        struct sigaction standard = {.sa_handler = SIG_DFL};
        int (*real)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
        real(number, &standard, NULL); /* the instruction faults again */
    }
}

static void on_signal(int number, siginfo_t *info, void *opaque) {
    ucontext_t *context = opaque;
    greg_t *place = &context->uc_mcontext.gregs[REG_RIP];
    const uint8_t *code = (const uint8_t *)*place;
    int saved = errno, done = 0;
    if (number == SIGSEGV && info->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0xa2) {
        answer_cpuid(context);
        *place += 2, done = 1;
    } else if (number == SIGILL) {
        while (execute(context, &code)) done = 1; /* they often follow one another */
        *place = (greg_t)code;
    }
    errno = saved;
    if (!done) to_the_program(number, info, opaque);
}

/* What the program must not take from here. */

int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    static int (*real)(int, const struct sigaction *, struct sigaction *);
    if (!real) real = dlsym(RTLD_NEXT, "sigaction");
    if (number != SIGILL && number != SIGSEGV) return real(number, action, old);
    struct sigaction before = others[number];
    if (action) others[number] = *action;
    if (old) *old = before;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    return sigaction(number, &action, &old) ? SIG_ERR : old.sa_handler;
}

long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_arch_prctl && a[0] == ARCH_REQ_XCOMP_PERM) return 0;
    if (number == SYS_arch_prctl && (a[0] == ARCH_GET_XCOMP_SUPP || a[0] == ARCH_GET_XCOMP_PERM)) {
        *(uint64_t *)a[1] = 0xe7 | TILE_STATE;
        return 0;
    }
    long result = call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result > -4096 && result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

__attribute__((constructor)) static void begin(void) {
    int (*real)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    real(SIGILL, &action, &others[SIGILL]);
    real(SIGSEGV, &action, &others[SIGSEGV]);
    if (set_cpuid(0)) {
        fputs("amx: this machine has no CPUID faulting\n", stderr);
        _exit(77);
    }
}

__attribute__((destructor)) static void end(void) {
    const char *wanted = getenv("AMX_COUNT");
    if (wanted && *wanted == '1') fprintf(stderr, "amx: %ld tile instructions\n", executed);
}
