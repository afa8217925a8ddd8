//! Measures products against this machine's own fused-multiply-add peak: `cargo run --release --example roofline [threads [type]]`.
//!
//! With one thread, times are CPU times of that thread, so that other work on the machine counts less.
#![expect(
    unsafe_code,
    reason = "a function compiled for AVX2 and FMA, called after detecting them, and a system clock"
)]
#![expect(clippy::print_stdout, reason = "prints its measurements")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use plimsoll_linear::{Output, PackedWeight, Settings, WeightType, linear, scratch_bytes};

/// Aligned scratch.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn main() {
    let threads = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1);
    let settings = Settings { threads, ..Settings::default() };
    let only = std::env::args().nth(2);
    let types = || WeightType::ALL.into_iter().filter(|ty| only.as_deref().is_none_or(|only| ty.name() == only));
    println!(
        "{} with {threads} thread(s); peak measured next to each product, best of many short runs",
        settings.isa.name()
    );
    for (rows, in_features, out_features) in
        [(512, 576, 576), (512, 576, 1536), (512, 1536, 576), (512, 576, 192), (64, 576, 1536)]
    {
        for ty in types() {
            if in_features % ty.block_elements() == 0 {
                product(ty, rows, in_features, out_features, settings);
            }
        }
    }
    for ty in types() {
        product(ty, 512, 1536, 1536, settings);
    }
    for rows in [1, 4, 8] {
        for ty in types() {
            product(ty, rows, 1536, 6144, settings);
        }
    }
    for ty in types().filter(|ty| 576 % ty.block_elements() == 0) {
        product(ty, 1, 576, 49152, settings);
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
    let (mut best, mut peak) = (f64::INFINITY, 0.0f64);
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < 1.0 {
        peak = peak.max(fma_peak());
        let start = now(settings.threads);
        linear(&x, rows, &mut [Output { weight: &weight, bias: None, out: &mut out }], scratch, settings);
        best = best.min((now(settings.threads) - start).as_secs_f64());
        black_box(&mut out);
    }
    let macs = (rows * in_features * out_features) as f64;
    let share = macs / best / (peak * settings.threads as f64) * 100.0;
    // The peak is 16 multiply-adds per cycle, so it counts cycles of the clock the core really ran at.
    let cycles = best * peak / 16.0 * settings.threads as f64;
    println!(
        "{ty:>5} {rows:>4} x {in_features:>4} x {out_features:>5}: {:8.3} ms, {:6.1} GMAC/s, {share:5.1}% of {:5.1} GMAC/s peak, {:5.2} cycles/weight, {:5.1} GB/s of weights",
        best * 1e3,
        macs / best / 1e9,
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

/// Multiply-adds per second of one core, from registers only.
fn fma_peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        const ROUNDS: usize = 20_000;
        let start = now(1);
        // SAFETY: AVX2 and FMA were detected.
        black_box(unsafe { fma_rounds(black_box(ROUNDS)) });
        return (ROUNDS * 12 * 8) as f64 / (now(1) - start).as_secs_f64();
    }
    f64::NAN
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
