/* Which instruction-set level the CPU kernels may use: what the processor has, what the operating system
 * saves across context switches, and, for AMX, what it permits this process. */
#include "kernels/kernel.h"

#include <stddef.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define PS_X86 1
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

const char *ps_cpu_level_name(ps_cpu_level level) {
    static const char *const names[] = {
#define PS_CPU_LEVEL_NAME(name, text, needs) [PS_CPU_##name] = text,
        PS_CPU_LEVEL_LIST(PS_CPU_LEVEL_NAME)
#undef PS_CPU_LEVEL_NAME
    };
    return (unsigned)level < PS_CPU_LEVEL_COUNT ? names[level] : "unknown";
}

#ifdef PS_X86

/* Bits of CPUID leaves and of XCR0, as in Intel's manual, volume 2. */
enum {
    LEAF1_ECX_FMA = 12,
    LEAF1_ECX_OSXSAVE = 27,
    LEAF1_ECX_AVX = 28,
    LEAF1_ECX_F16C = 29,
    LEAF7_EBX_AVX2 = 5,
    LEAF7_EBX_AVX512F = 16,
    LEAF7_EBX_AVX512DQ = 17,
    LEAF7_EBX_AVX512BW = 30,
    LEAF7_EBX_AVX512VL = 31,
    LEAF7_ECX_AVX512VNNI = 11,
    LEAF7_EDX_AMX_BF16 = 22,
    LEAF7_EDX_AMX_TILE = 24,
    LEAF7_1_EAX_AVX512BF16 = 5
};
#define XCR0_AVX 0x6u              /* SSE, AVX */
#define XCR0_AVX512 0xe6u          /* and opmask, both halves of zmm */
#define XCR0_AMX 0x60000u          /* tile configuration, tile data */
#define ARCH_REQ_XCOMP_PERM 0x1023 /* <asm/prctl.h> of Linux 5.16 and later */
#define XFEATURE_XTILEDATA 18

static bool bit(uint32_t word, int n) {
    return (word >> n) & 1u;
}

static uint32_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

/* Linux hands out the 8 KiB of tile state only to processes that ask. */
static bool amx_permitted(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

ps_cpu_level ps_cpu_level_detect(void) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return PS_CPU_GENERIC;
    if (!bit(c, LEAF1_ECX_OSXSAVE) || !bit(c, LEAF1_ECX_AVX) || !bit(c, LEAF1_ECX_FMA) ||
        !bit(c, LEAF1_ECX_F16C))
        return PS_CPU_GENERIC;
    uint32_t os = xcr0();
    if ((os & XCR0_AVX) != XCR0_AVX || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !bit(b, LEAF7_EBX_AVX2))
        return PS_CPU_GENERIC;
    uint32_t n_subleaves = a, edx7 = d;
    if ((os & XCR0_AVX512) != XCR0_AVX512 || !bit(b, LEAF7_EBX_AVX512F) || !bit(b, LEAF7_EBX_AVX512DQ) ||
        !bit(b, LEAF7_EBX_AVX512BW) || !bit(b, LEAF7_EBX_AVX512VL) || !bit(c, LEAF7_ECX_AVX512VNNI))
        return PS_CPU_AVX2;
    if (n_subleaves < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !bit(a, LEAF7_1_EAX_AVX512BF16))
        return PS_CPU_AVX512;
    if ((os & XCR0_AMX) != XCR0_AMX || !bit(edx7, LEAF7_EDX_AMX_TILE) || !bit(edx7, LEAF7_EDX_AMX_BF16))
        return PS_CPU_AVX512BF16;
    return amx_permitted() ? PS_CPU_AMX : PS_CPU_AVX512BF16;
}

#else

ps_cpu_level ps_cpu_level_detect(void) {
    return PS_CPU_GENERIC;
}

#endif
