//! How much of this machine's fused multiply-add peak attention reaches, on one core, for each instruction set.
//!
//! `cargo run --release -p plimsoll-attention --no-default-features --example shares [rows]`
//!
//! The first table holds the peak of each instruction set, the second prefill chunks at several depths, with the multiply-adds of the keys that
//! rows see: softmax and what is computed in vain count as time only. Variants alternate and the least time of each counts.
#![expect(clippy::print_stdout, reason = "a program's output")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use plimsoll_attention::{
    AttnParams, AttnShape, Error, Isa, KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvValues, KvView, Route, Settings,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn aligned(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 2001) as f32 / 1000.0 - 1.0).collect()
}

/// Heads and sizes of a model's attention.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

const MODELS: [Model; 2] = [
    Model { name: "SmolLM2", heads: 9, kv_heads: 3, head_dim: 64 },
    Model { name: "Gemma 3", heads: 4, kv_heads: 1, head_dim: 256 },
];

impl Model {
    fn shape(&self, rows: usize, kv_len: usize) -> AttnShape {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        let kv_dtype = KvDtype::Bf16;
        AttnShape {
            rows,
            kv_len,
            heads,
            kv_heads,
            head_dim,
            v_head_dim: head_dim,
            kv_dtype,
            kv_values: KvValues::Own,
            window: None,
        }
    }

    fn layout(&self) -> KvLayout {
        let Self { kv_heads, head_dim, .. } = *self;
        KvLayout { kv_heads, head_dim, v_head_dim: head_dim, dtype: KvDtype::Bf16, values: KvValues::Own }
    }

    /// Fused multiply-adds of the keys that the rows see.
    fn fmas(&self, rows: usize, kv_len: usize) -> f64 {
        let pairs: usize = (kv_len - rows..kv_len).map(|position| position + 1).sum();
        (pairs * self.heads * 2 * self.head_dim) as f64
    }

    /// Keys and values of a long prompt.
    fn blocks(&self, kv_len: usize) -> Vec<(Vec<Line>, Vec<Line>)> {
        let layout = self.layout();
        let row = layout.kv_heads * layout.head_dim;
        let values = numbers(KV_BLOCK_TOKENS * row + 4096);
        let block = |i: usize| {
            let (mut k, mut v) = (aligned(layout.k_block_bytes()), aligned(layout.v_block_bytes()));
            let rows = &values[i % 61 * 64..][..KV_BLOCK_TOKENS * row];
            let (k_bytes, v_bytes) = (bytemuck::cast_slice_mut(&mut k), bytemuck::cast_slice_mut(&mut v));
            layout.write_rows(k_bytes, v_bytes, 0, rows, rows, KV_BLOCK_TOKENS);
            (k, v)
        };
        (0..kv_len.div_ceil(KV_BLOCK_TOKENS)).map(block).collect()
    }
}

/// Least seconds of one chunk of `rows` rows that ends at `kv_len`, for each of the settings, which take turns.
fn chunk(model: &Model, rows: usize, kv_len: usize, settings: &[Settings], turns: usize) -> Result<Vec<f64>, Error> {
    let blocks = model.blocks(kv_len);
    let table: Vec<_> =
        blocks.iter().map(|(k, v)| KvBlock { k: bytemuck::cast_slice(k), v: bytemuck::cast_slice(v) }).collect();
    let view = KvView::new(model.layout(), &table, kv_len)?;
    let shape = model.shape(rows, kv_len);
    let params = AttnParams { scale: 1.0 / (model.head_dim as f32).sqrt(), window: None, softcap: None, sinks: None };
    let q = numbers(rows * model.heads * model.head_dim);
    let mut out = vec![0.0; q.len()];
    let mut least = vec![f64::INFINITY; settings.len()];
    for _ in 0..turns {
        for (settings, least) in settings.iter().zip(&mut least) {
            let route = Route::for_shape(&shape, settings);
            let bytes = usize::try_from(route.workspace_bytes(&shape)).unwrap_or(usize::MAX);
            let mut scratch = aligned(bytes);
            let begin = Instant::now();
            route.run(&q, &view, kv_len - rows, &params, &mut out, bytemuck::cast_slice_mut(&mut scratch))?;
            *least = least.min(begin.elapsed().as_secs_f64());
            black_box(&out);
        }
    }
    Ok(least)
}

/// Fused multiply-adds a second that one core does from registers, in each instruction set this program knows a loop for.
fn peak(isa: Isa) -> Option<f64> {
    let one = || {
        let begin = Instant::now();
        let fmas = peak::run(isa, black_box(0.5))?;
        Some(fmas / begin.elapsed().as_secs_f64())
    };
    let end = Instant::now() + Duration::from_millis(300);
    let mut best = one()?;
    while Instant::now() < end {
        best = best.max(one()?);
    }
    Some(best)
}

#[cfg(target_arch = "x86_64")]
mod peak {
    #![expect(unsafe_code, reason = "the peak is measured with intrinsics")]
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use plimsoll_attention::Isa;

    const CHAINS: usize = 12;
    const STEPS: usize = 100_000;

    #[target_feature(enable = "avx2,fma")]
    fn avx2(x: f32) -> f32 {
        let (x, y) = (_mm256_set1_ps(x), _mm256_set1_ps(0.5));
        let mut sums = [_mm256_setzero_ps(); CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        sums.into_iter().fold(0.0, |total, sum| total + _mm256_cvtss_f32(sum))
    }

    #[target_feature(enable = "avx512f")]
    fn avx512(x: f32) -> f32 {
        let (x, y) = (_mm512_set1_ps(x), _mm512_set1_ps(0.5));
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        sums.into_iter().fold(0.0, |total, sum| total + _mm512_cvtss_f32(sum))
    }

    /// Runs the loop and returns how many multiply-adds it did.
    pub(super) fn run(isa: Isa, x: f32) -> Option<f64> {
        let lanes = match isa {
            Isa::Avx2 if isa.is_available() => {
                // SAFETY: the CPU has AVX2 and FMA.
                black_box(unsafe { avx2(x) });
                8
            }
            Isa::Avx512 if isa.is_available() => {
                // SAFETY: the CPU has AVX-512 F.
                black_box(unsafe { avx512(x) });
                16
            }
            _ => return None,
        };
        Some((lanes * CHAINS * STEPS) as f64)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod peak {
    /// No loop is written for other machines.
    pub(super) fn run(_: plimsoll_attention::Isa, _: f32) -> Option<f64> {
        None
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows = std::env::args().nth(1).map_or(Ok(512), |rows| rows.parse())?;
    let peaks: Vec<(Isa, f64)> =
        [Isa::Avx512, Isa::Avx2].into_iter().filter_map(|isa| Some((isa, peak(isa)?))).collect();
    println!("| instruction set | peak, GFLOP/s |\n|---|---|");
    for (isa, peak) in &peaks {
        println!("| {isa} | {:.0} |", 2e-9 * peak);
    }
    println!(
        "\n| model | instruction set | rows | kv_len | seconds | GFLOP/s | share of peak |\n|---|---|---|---|---|---|---|"
    );
    let settings: Vec<_> = peaks.iter().map(|&(isa, _)| Settings { route: None, isa, threads: 1 }).collect();
    for model in &MODELS {
        for kv_len in [2048, 8192, 32768].into_iter().filter(|&kv_len| kv_len >= rows) {
            let turns = (64 * 2048 / kv_len / model.head_dim.div_ceil(64)).clamp(3, 40);
            let seconds = chunk(model, rows, kv_len, &settings, turns)?;
            for ((isa, peak), seconds) in peaks.iter().zip(seconds) {
                let rate = model.fmas(rows, kv_len) / seconds;
                println!(
                    "| {} | {isa} | {rows} | {kv_len} | {seconds:.5} | {:.0} | {:.0} % |",
                    model.name,
                    2e-9 * rate,
                    100.0 * rate / peak
                );
            }
        }
    }
    Ok(())
}
