//! What the machine's instructions reach from registers alone: the roof that products are held against.

use std::time::{Duration, Instant};

/// One instruction, and the loop that measures it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peak {
    /// `{instruction set}-{type of the products}`.
    pub(crate) name: &'static str,
    /// Multiply-adds of one round of [`Peak::run`].
    macs_per_round: usize,
    /// Multiply-adds that a core with two such units finishes in a cycle.
    pub(crate) macs_per_cycle: f64,
    /// Runs so many rounds.
    run: fn(usize),
}

impl Peak {
    /// Every peak that this machine has instructions for.
    pub(crate) fn available() -> Vec<Self> {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        let peaks = native::available();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let peaks = Vec::new();
        peaks
    }

    /// Multiply-adds per second of `threads` threads at once, each by its own CPU time: to be held against a product next to it.
    pub(crate) fn macs_per_second(&self, threads: usize) -> f64 {
        self.by(threads, || now(1))
    }

    /// The same by the clock on the wall. Whatever disturbs can only lower it, so the most of many is never too high; CPU time is, at times,
    /// where a hypervisor's share is subtracted from it.
    pub(crate) fn wall_macs_per_second(&self, threads: usize) -> f64 {
        self.by(threads, wall)
    }

    fn by(&self, threads: usize, clock: fn() -> Duration) -> f64 {
        if threads <= 1 {
            return self.of_this_thread(clock);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.of_this_thread(clock))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a loop over registers")).sum()
        })
    }

    fn of_this_thread(&self, clock: fn() -> Duration) -> f64 {
        // A tenth of a millisecond or so: short enough to fall between interruptions.
        const MACS: usize = 10_000_000;
        let rounds = (MACS / self.macs_per_round).max(1_000);
        let start = clock();
        (self.run)(rounds);
        (rounds * self.macs_per_round) as f64 / (clock() - start).as_secs_f64()
    }
}

/// CPU time of this thread, or wall time since an arbitrary start if several threads work.
pub(crate) fn now(threads: usize) -> Duration {
    #[cfg(unix)]
    if threads == 1 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writes.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        if status == 0 {
            return Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0));
        }
    }
    wall()
}

fn wall() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(target_arch = "x86_64")]
mod native {
    use std::arch::{asm, is_x86_feature_detected, x86_64::__cpuid_count};

    use plimsoll_linear::Isa;

    use super::Peak;

    /// Twelve chains: two units of four cycles' latency need eight.
    const CHAINS: usize = 12;

    /// A loop of twelve independent chains of one instruction on vectors of registers `$register`.
    macro_rules! chains {
        ($name:ident, $register:literal, $instruction:literal, $operands:expr) => {
            fn $name(rounds: usize) {
                let operands: [u32; 2] = $operands;
                // SAFETY: `available` lists the peak only where the CPU has the instruction; only registers are written.
                unsafe {
                    asm!(
                        "vpxor xmm0, xmm0, xmm0",
                        "vpxor xmm1, xmm1, xmm1",
                        "vpxor xmm2, xmm2, xmm2",
                        "vpxor xmm3, xmm3, xmm3",
                        "vpxor xmm4, xmm4, xmm4",
                        "vpxor xmm5, xmm5, xmm5",
                        "vpxor xmm6, xmm6, xmm6",
                        "vpxor xmm7, xmm7, xmm7",
                        "vpxor xmm8, xmm8, xmm8",
                        "vpxor xmm9, xmm9, xmm9",
                        "vpxor xmm10, xmm10, xmm10",
                        "vpxor xmm11, xmm11, xmm11",
                        concat!("vpbroadcastd ", $register, "12, dword ptr [{operands}]"),
                        concat!("vpbroadcastd ", $register, "13, dword ptr [{operands} + 4]"),
                        "2:",
                        concat!($instruction, " ", $register, "0, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "1, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "2, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "3, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "4, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "5, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "6, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "7, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "8, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "9, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "10, ", $register, "12, ", $register, "13"),
                        concat!($instruction, " ", $register, "11, ", $register, "12, ", $register, "13"),
                        "dec {rounds}",
                        "jnz 2b",
                        "vzeroupper",
                        operands = in(reg) operands.as_ptr(),
                        rounds = inout(reg) rounds.max(1) => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                        out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                        out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
                        options(nostack, readonly),
                    );
                }
            }
        };
    }

    const F32: [u32; 2] = [0.5f32.to_bits(), 0.25f32.to_bits()];
    const BF16: [u32; 2] = [0x3f00_3f00, 0x3e80_3e80];
    const INT8: [u32; 2] = [0x0503_0201, 0x0302_0101];

    chains!(fma_256, "ymm", "vfmadd231ps", F32);
    chains!(fma_512, "zmm", "vfmadd231ps", F32);
    chains!(bf16_512, "zmm", "vdpbf16ps", BF16);
    chains!(int8_256, "ymm", "{{vex}} vpdpbusd", INT8);
    chains!(int8_512, "zmm", "vpdpbusd", INT8);

    pub(super) fn available() -> Vec<Peak> {
        let avx512 = is_x86_feature_detected!("avx512f");
        let amx = Isa::Amx.is_available();
        let leaf = |sub| __cpuid_count(7, sub);
        let vector =
            |name, lanes, run| Peak { name, macs_per_round: CHAINS * lanes, macs_per_cycle: 2.0 * lanes as f64, run };
        let tiles = |name, depth: usize, run| Peak {
            name,
            macs_per_round: 4 * 16 * 16 * depth,
            macs_per_cycle: 16.0 * depth as f64,
            run,
        };
        [
            (
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
                vector("avx2-f32", 8, fma_256 as fn(usize)),
            ),
            (is_x86_feature_detected!("avx2") && leaf(1).eax & (1 << 4) != 0, vector("avx2-int8", 32, int8_256)),
            (avx512, vector("avx512-f32", 16, fma_512)),
            (avx512 && leaf(1).eax & (1 << 5) != 0, vector("avx512-bf16", 32, bf16_512)),
            (avx512 && leaf(0).ecx & (1 << 11) != 0, vector("avx512-int8", 64, int8_512)),
            (amx, tiles("amx-bf16", 32, bf16_tiles)),
            (amx && leaf(0).edx & (1 << 25) != 0, tiles("amx-int8", 64, int8_tiles)),
        ]
        .into_iter()
        .filter_map(|(available, peak)| available.then_some(peak))
        .collect()
    }

    /// The operand of `ldtilecfg`.
    #[repr(C, align(64))]
    struct Config([u8; 64]);

    /// Four products of whole tiles a round.
    macro_rules! tiles {
        ($name:ident, $instruction:literal) => {
            fn $name(rounds: usize) {
                let mut config = Config([0; 64]);
                config.0[0] = 1;
                for tile in 0..8 {
                    config.0[16 + 2 * tile] = 64;
                    config.0[48 + tile] = 16;
                }
                // Ordinary numbers: products of zeros draw so little power that they run faster than any other.
                let mut values = [0x3c00_3d00u32; 256];
                for (value, i) in values.iter_mut().zip(0u32..) {
                    *value |= ((i * 37 % 128) << 16) | (i * 91 % 128);
                }
                // SAFETY: `available` lists the peak only where AMX is there and permitted; a tile is 1 KiB of `values`, and
                // tiles are given back.
                unsafe {
                    asm!(
                        "ldtilecfg [{config}]",
                        "tileloadd tmm4, [{values} + {row}]",
                        "tileloadd tmm5, [{values} + {row}]",
                        "tileloadd tmm6, [{values} + {row}]",
                        "tileloadd tmm7, [{values} + {row}]",
                        "2:",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        "dec {rounds}",
                        "jnz 2b",
                        "tilerelease",
                        config = in(reg) &raw const config,
                        values = in(reg) values.as_ptr(),
                        row = in(reg) 64usize,
                        rounds = inout(reg) rounds.max(1) => _,
                        options(nostack, readonly),
                    );
                }
            }
        };
    }

    tiles!(bf16_tiles, "tdpbf16ps");
    tiles!(int8_tiles, "tdpbusd");
}

#[cfg(target_arch = "aarch64")]
mod native {
    use std::arch::{aarch64::*, is_aarch64_feature_detected};
    use std::hint::black_box;

    use super::Peak;

    pub(super) fn available() -> Vec<Peak> {
        // Four vector units are the most that any core has; Apple's have four.
        let neon = Peak { name: "neon-f32", macs_per_round: 16 * 4, macs_per_cycle: 16.0, run: fma };
        if is_aarch64_feature_detected!("neon") { vec![neon] } else { Vec::new() }
    }

    /// Sixteen chains: four units of four cycles' latency.
    fn fma(rounds: usize) {
        // SAFETY: `available` lists the peak only where NEON was detected.
        unsafe { fma_neon(rounds) }
    }

    #[target_feature(enable = "neon")]
    fn fma_neon(rounds: usize) {
        let (a, b) = (vdupq_n_f32(black_box(0.5)), vdupq_n_f32(black_box(0.25)));
        let mut sums = [vdupq_n_f32(0.0); 16];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = vfmaq_f32(*sum, a, b);
            }
        }
        for sum in sums {
            black_box(vgetq_lane_f32::<0>(sum));
        }
    }
}
