//! Fused multiply-adds a second: the machine's peak, a prefill chunk at several depths, one decode row.
//!
//! `cargo bench -p plimsoll-attention --bench attention`; compare `prefill/*` with `fma-peak` for the share of peak on one core.
#![expect(clippy::unwrap_used, reason = "a bench has nothing better to do")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_attention::math::{Activation, exp_slice, glu};
use plimsoll_attention::{
    AttnParams, AttnShape, Isa, KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvValues, KvView, Route, Settings,
};

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn aligned(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 2001) as f32 / 1000.0 - 1.0).collect()
}

fn blocks(layout: &KvLayout, kv_len: usize) -> Vec<(Vec<Line>, Vec<Line>)> {
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

fn attend(c: &mut Criterion, group: &str, dtype: KvDtype, rows: usize, kv_lens: &[usize], threads: usize) {
    let mut group = c.benchmark_group(group);
    for &kv_len in kv_lens {
        let layout =
            KvLayout { kv_heads: KV_HEADS, head_dim: HEAD_DIM, v_head_dim: HEAD_DIM, dtype, values: KvValues::Own };
        let blocks = blocks(&layout, kv_len);
        let table: Vec<_> =
            blocks.iter().map(|(k, v)| KvBlock { k: bytemuck::cast_slice(k), v: bytemuck::cast_slice(v) }).collect();
        let view = KvView::new(layout, &table, kv_len).unwrap();
        let shape = AttnShape {
            rows,
            kv_len,
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            v_head_dim: HEAD_DIM,
            kv_dtype: dtype,
            kv_values: KvValues::Own,
            window: None,
        };
        let route = Route::for_shape(&shape, &Settings { route: None, isa: Isa::detect(), threads });
        let mut scratch = aligned(usize::try_from(route.workspace_bytes(&shape)).unwrap());
        let params = AttnParams { scale: 0.125, window: None, softcap: None, sinks: None };
        let (q, mut out) = (numbers(rows * HEADS * HEAD_DIM), vec![0.0; rows * HEADS * HEAD_DIM]);
        let start = kv_len - rows;
        let pairs: usize = (0..rows).map(|i| start + i + 1).sum();
        group.throughput(Throughput::Elements((pairs * HEADS * 2 * HEAD_DIM) as u64));
        group.bench_function(BenchmarkId::from_parameter(kv_len), |b| {
            b.iter(|| {
                route
                    .run(black_box(&q), &view, start, &params, &mut out, bytemuck::cast_slice_mut(&mut scratch))
                    .unwrap()
            });
        });
    }
    group.finish();
}

fn attention(c: &mut Criterion) {
    let depths = [512, 2048, 8192];
    attend(c, "prefill-512/bf16", KvDtype::Bf16, 512, &depths, 1);
    attend(c, "prefill-512/f16", KvDtype::F16, 512, &depths[1..2], 1);
    attend(c, "prefill-512/f32", KvDtype::F32, 512, &depths[1..2], 1);
    attend(c, "prefill-512/bf16/2-threads", KvDtype::Bf16, 512, &depths[1..2], 2);
    attend(c, "decode/bf16", KvDtype::Bf16, 1, &depths, 1);
    attend(c, "decode/f16", KvDtype::F16, 1, &depths[1..2], 1);
}

fn math(c: &mut Criterion) {
    let mut group = c.benchmark_group("math");
    let x = numbers(4096);
    let (mut y, mut out) = (x.clone(), x.clone());
    group.throughput(Throughput::Elements(4096));
    group.bench_function("exp", |b| {
        b.iter(|| {
            y.copy_from_slice(&x);
            exp_slice(Isa::detect(), black_box(&mut y));
        });
    });
    group.bench_function("swiglu", |b| {
        b.iter(|| {
            out.copy_from_slice(&x);
            glu(Isa::detect(), Activation::Silu, black_box(&mut out), &y);
        });
    });
    group.finish();
}

#[cfg(target_arch = "x86_64")]
mod peak {
    #![expect(unsafe_code, reason = "the peak is measured with intrinsics")]
    use std::arch::x86_64::*;

    /// 12 independent chains of 1,000 fused multiply-adds on 8 lanes.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn fma(x: f32) -> f32 {
        let (x, y) = (_mm256_set1_ps(x), _mm256_set1_ps(0.5));
        let mut sums = [_mm256_setzero_ps(); 12];
        for _ in 0..1000 {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        sums.into_iter().fold(0.0, |total, sum| total + _mm256_cvtss_f32(sum))
    }

    pub(super) fn run(x: f32) -> f32 {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the features were found.
            unsafe { fma(x) }
        } else {
            f32::NAN
        }
    }
}

fn fma_peak(c: &mut Criterion) {
    #[cfg(target_arch = "x86_64")]
    {
        let mut group = c.benchmark_group("fma-peak");
        group.throughput(Throughput::Elements(12 * 1000 * 8));
        group.bench_function("avx2", |b| b.iter(|| peak::run(black_box(0.5))));
        group.finish();
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = c;
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(2));
    targets = fma_peak, attention, math
}
criterion_main!(benches);
