//! Measures products against this machine's own peak: `cargo run --release --example roofline [isa [threads [type [rows]]]]`.
//!
//! The peak is that of the instruction the kernel lives on, from registers only, measured next to each product: `tdpbf16ps` for AMX (but
//! fused multiply-adds of 512 bits for f32 weights and for few rows), else fused multiply-adds. With one thread, times are CPU times of that
//! thread, so that other work on the machine counts less. Two shares are printed: of the shortest runs of both, and the median over pairs
//! of runs, which other tenants of the machine (a sibling hyperthread shares the matrix unit) lower.
#![expect(
    unsafe_code,
    reason = "functions compiled for instructions that were detected, a system clock, and matrix instructions"
)]
#![expect(clippy::print_stdout, reason = "prints its measurements")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use plimsoll_linear::{Isa, Output, PackedWeight, Settings, WeightType, linear, scratch_bytes};

/// Aligned scratch.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn main() {
    let mut args = std::env::args().skip(1);
    let isa = args.next().map_or_else(|| Ok(Isa::detect()), |name| name.parse::<Isa>().and_then(Isa::require));
    let isa = isa.expect("an instruction set of this machine");
    let threads = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(1);
    let only = args.next();
    let rows: Vec<usize> = args.next().map_or_else(
        || vec![2048, 512, 64, 8, 4, 2, 1],
        |list| list.split(',').map(|rows| rows.parse().expect("numbers of rows")).collect(),
    );
    let settings = Settings { isa, threads };
    println!("{isa} with {threads} thread(s)");
    for rows in rows {
        for (in_features, out_features) in
            [(576, 576), (576, 1536), (1536, 576), (576, 49152), (640, 1024), (640, 2048), (2048, 640), (4096, 4096)]
        {
            for ty in WeightType::ALL {
                let chosen =
                    only.as_deref().is_none_or(|only| only == "all" || only.split(',').any(|only| ty.name() == only));
                if chosen && in_features % ty.block_elements() == 0 {
                    product(ty, rows, in_features, out_features, settings);
                }
            }
        }
    }
}

fn product(ty: WeightType, rows: usize, in_features: usize, out_features: usize, settings: Settings) {
    // Scales of 2^-8 (0x1c00 as f16) everywhere: numbers that neither overflow nor vanish.
    let mut bytes = vec![0x1c; ty.row_bytes(in_features).expect("whole blocks") * out_features];
    for (i, byte) in bytes.iter_mut().enumerate().filter(|(i, _)| i % 2 == 0) {
        *byte = u8::try_from(i * 7 % 31).expect("below 31");
    }
    let weight = PackedWeight::pack(ty, out_features, in_features, &bytes, settings.threads).expect("valid shape");
    let x: Vec<f32> = (0..rows * in_features).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
    let mut out = vec![0.0; rows * out_features];
    let needed = scratch_bytes(rows, in_features, &[(ty, out_features)], settings);
    let mut lines: Vec<Line> = bytemuck::zeroed_vec(usize::try_from(needed).expect("fits").div_ceil(64));
    let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
    let peak_isa =
        if settings.isa == Isa::Amx && (rows < 3 || ty == WeightType::F32) { Isa::Avx512 } else { settings.isa };
    let macs = (rows * in_features * out_features) as f64;
    let (mut best, mut peak, mut shares) = (f64::INFINITY, 0.0f64, Vec::new());
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < 1.0 || shares.len() < 5 {
        let peak_now = peak_of(peak_isa);
        let start = now(settings.threads);
        linear(&x, rows, &mut [Output { weight: &weight, bias: None, out: &mut out }], scratch, settings);
        let seconds = (now(settings.threads) - start).as_secs_f64();
        black_box(&mut out);
        best = best.min(seconds);
        peak = peak.max(peak_now);
        shares.push(macs / seconds / (peak_now * settings.threads as f64) * 100.0);
    }
    shares.sort_by(f64::total_cmp);
    let share = macs / best / (peak * settings.threads as f64) * 100.0;
    // Multiply-adds per cycle at the peak: the peak counts cycles of the clock the core really ran at.
    let per_cycle = match peak_isa {
        Isa::Amx => 512.0,
        Isa::Avx512 => 32.0,
        _ => 16.0,
    };
    let cycles = best * peak / per_cycle * settings.threads as f64;
    println!(
        "{ty:>5} {rows:>4} x {in_features:>4} x {out_features:>5}: {:9.3} ms, {:7.1} GMAC/s, {share:5.1}% (median {:5.1}%) of {:6.1} GMAC/s peak, {:6.3} cycles/weight, {:5.1} GB/s of weights",
        best * 1e3,
        macs / best / 1e9,
        shares[shares.len() / 2],
        peak * settings.threads as f64 / 1e9,
        cycles / (in_features * out_features) as f64,
        weight.bytes() as f64 / best / 1e9,
    );
}

/// CPU time of this thread, or wall time since an arbitrary start if several threads work.
fn now(threads: usize) -> Duration {
    #[cfg(unix)]
    if threads == 1 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writes.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        if status == 0 {
            return Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0));
        }
    }
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Multiply-adds per second of one core, from registers only; NaN where this machine lacks the instructions.
fn peak_of(isa: Isa) -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        const ROUNDS: usize = 20_000;
        let (start, per_round);
        match isa {
            Isa::Amx if Isa::Amx.is_available() => {
                start = now(1);
                // SAFETY: AMX was detected, which asked for permission.
                unsafe { tile_rounds(ROUNDS / 8) };
                per_round = 4 * 16 * 16 * 32 / 8;
            }
            Isa::Avx512 | Isa::Amx if is_x86_feature_detected!("avx512f") => {
                start = now(1);
                // SAFETY: AVX-512 was detected.
                black_box(unsafe { fma_rounds_512(black_box(ROUNDS)) });
                per_round = 12 * 16;
            }
            _ if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") => {
                start = now(1);
                // SAFETY: AVX2 and FMA were detected.
                black_box(unsafe { fma_rounds(black_box(ROUNDS)) });
                per_round = 12 * 8;
            }
            _ => return f64::NAN,
        }
        (ROUNDS * per_round) as f64 / (now(1) - start).as_secs_f64()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        f64::NAN
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_rounds(rounds: usize) -> f32 {
    use std::arch::x86_64::*;
    let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
    let mut sums = [_mm256_setzero_ps(); 12];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    let total = sums.into_iter().fold(_mm256_setzero_ps(), |x, y| _mm256_add_ps(x, y));
    _mm256_cvtss_f32(total)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn fma_rounds_512(rounds: usize) -> f32 {
    use std::arch::x86_64::*;
    let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
    let mut sums = [_mm512_setzero_ps(); 12];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, a, b);
        }
    }
    let total = sums.into_iter().fold(_mm512_setzero_ps(), |x, y| _mm512_add_ps(x, y));
    _mm512_cvtss_f32(total)
}

/// Four products of whole tiles a round.
///
/// # Safety
/// The CPU has AMX with bf16, and the system permits it.
#[cfg(target_arch = "x86_64")]
unsafe fn tile_rounds(rounds: usize) {
    /// The operand of `ldtilecfg`.
    #[repr(C, align(64))]
    struct Config([u8; 64]);
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
    // SAFETY: the caller's promise; a tile is 1 KiB of `values`, and tiles are given back.
    unsafe {
        std::arch::asm!(
            "ldtilecfg [{config}]",
            "tileloadd tmm4, [{values} + {row}]",
            "tileloadd tmm5, [{values} + {row}]",
            "tileloadd tmm6, [{values} + {row}]",
            "tileloadd tmm7, [{values} + {row}]",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
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
